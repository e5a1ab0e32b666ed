//! What can be typed, and what is refused.

use super::run::run_name;
use super::*;
use crate::quantity::Memory;

/// Collects the examples in the help of a command and of those below it.
fn examples(command: &clap::Command, found: &mut Vec<String>) {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let lines = help.lines().filter_map(|line| line.trim().strip_prefix("sluice "));
    // Two blanks begin the explanation.
    let commands = lines.filter_map(|line| line.split("  ").next());
    let is_plain = |line: &&str| !line.contains(['\\', '\'', '"', '|', ';', '$', '<', '>', '[']);
    found.extend(commands.filter(is_plain).map(|line| format!("sluice {line}")));
    command.get_subcommands().for_each(|command| examples(command, found));
}

#[test]
fn what_help_shows_can_be_typed() {
    use clap::CommandFactory;
    let mut found = Vec::new();
    examples(&Cli::command(), &mut found);
    assert!(found.len() > 10, "{found:?}");
    let wrong = |example: &String| {
        let line = example.replace("FINGERPRINT", &"0".repeat(64));
        Some(format!("{example}: {}", Cli::try_parse_from(line.split_whitespace()).err()?))
    };
    let wrong: Vec<String> = found.iter().filter_map(wrong).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_definition_is_consistent() {
    use clap::CommandFactory;
    Cli::command().debug_assert();
}

#[test]
fn a_tenant_is_of_a_server_only() {
    for (other, value) in [("--node", "localhost:7583"), ("--gpus", "software")] {
        let refused =
            Cli::try_parse_from(["sluice", "bench", "remoting", other, value, "--tenant", "acme"]).err();
        let kind = refused.map(|error| error.kind());
        assert_eq!(kind, Some(clap::error::ErrorKind::ArgumentConflict), "{other}");
    }
}

#[test]
fn gpu_choices() {
    let check = |text: &str, expect: Result<GpuChoice, &str>| match (text.parse::<GpuChoice>(), expect) {
        (Ok(got), Ok(expect)) => assert_eq!(got, expect, "{text}"),
        (Err(got), Err(part)) => assert!(got.contains(part), "{text}: {got}"),
        (got, expect) => panic!("{text}: {got:?}, expected {expect:?}"),
    };
    let software = |count, memory_mib: Option<u64>| {
        Ok(GpuChoice::Software { count, memory: memory_mib.map(|mib| Memory::from_bytes(mib << 20)) })
    };
    check("auto", Ok(GpuChoice::Auto));
    check("nvidia", Ok(GpuChoice::Nvidia));
    check("software", software(1, None));
    check("software:3", software(3, None));
    check("software:2,4GiB", software(2, Some(4096)));
    check("software:0", Err("1 to 64"));
    check("software:2,lots", Err("lots"));
    let recording = |model: &str, count| Ok(GpuChoice::Recording { model: model.into(), count });
    check("recording", recording("h200", 1));
    check("recording:a100", recording("a100", 1));
    check("recording:rtx5090,2", recording("rtx5090", 2));
    check("recording:h100", Err("h200, a100, rtx5090"));
    check("recording:h200,0", Err("1 to 64"));
    check("library:/opt/x.so", Ok(GpuChoice::Library("/opt/x.so".into())));
    check("library:x.so", Err("absolute"));
    check("amd", Err("expected auto"));
    check("auto:2", Err("expected auto"));
}

#[test]
fn the_program_keeps_its_own_options() {
    let cli = Cli::parse_from(["sluice", "run", "-p", "25%", "--", "prog", "-p", "--memory", "--", "x"]);
    let Command::Run(run) = cli.command else { panic!("not a run") };
    assert_eq!(run.share().ppm(), 250_000);
    assert_eq!(run.program, ["prog", "-p", "--memory", "--", "x"]);
}

#[test]
fn a_program_needs_no_dashes_before_it() {
    let cli = Cli::parse_from(["sluice", "run", "-p", "25%", "python", "-p", "x.py", "--", "--memory"]);
    let Command::Run(run) = cli.command else { panic!("not a run") };
    assert_eq!(run.share().ppm(), 250_000);
    assert_eq!(run.program, ["python", "-p", "x.py", "--", "--memory"]);
    assert!(Cli::try_parse_from(["sluice", "run", "-p", "25%"]).is_err());
    // A mistyped option is not the program.
    assert!(Cli::try_parse_from(["sluice", "run", "--memroy", "8GiB", "python"]).is_err());
}

/// Each option of `sluice run` that its help calls one for servers, with a value.
#[test]
fn options_for_servers_are_known_as_such() {
    let values = [
        ("units", "5"),
        ("nodes", "2"),
        ("lease", "7"),
        ("tenant", "acme"),
        ("priority", "100"),
        ("tasks", "2"),
        ("linked", "nvlink"),
        ("tier", "standard"),
        ("pool", "x"),
        ("gpu-model", "h100"),
        ("min-tflops", "20"),
        ("min-gpu-memory", "8GiB"),
        ("label", "zone=a"),
        ("deadline", "2h"),
        ("duration", "20min"),
        ("hold", "5min"),
        ("no-preempt", ""),
        ("as-asked", ""),
        ("dry-run", ""),
    ];
    let command = <Cli as clap::CommandFactory>::command();
    let run = command.find_subcommand("run").expect("a subcommand");
    let is_for_servers = |argument: &&clap::Arg| {
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        help.contains("With a server") || help.contains("with a server")
    };
    let mut named: Vec<&str> =
        run.get_arguments().filter(is_for_servers).filter_map(clap::Arg::get_long).collect();
    named.sort_unstable();
    let mut known = values.map(|(option, _)| option);
    known.sort_unstable();
    assert_eq!(named, known);
    for (option, value) in values {
        let word = if value.is_empty() { format!("--{option}") } else { format!("--{option}={value}") };
        let cli = Cli::parse_from(["sluice", "run", &word, "--", "prog"]);
        let Command::Run(run) = cli.command else { panic!("not a run") };
        assert_eq!(run.server_option().map(|(name, _)| name), Some(&*format!("--{option}")));
    }
    let Command::Run(bare) = Cli::parse_from(["sluice", "run", "prog"]).command else { panic!() };
    assert_eq!(bare.server_option(), None);
}

#[test]
fn names_are_short_and_visible() {
    assert_eq!(run_name("nightly training"), Ok("nightly training".into()));
    for wrong in ["", "  ", "a\u{202e}b", "a\nb", &"x".repeat(61)] {
        assert!(run_name(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn shares_outside_the_range_are_refused() {
    for share in ["0", "1.01", "-1", "101%", "nan", "inf", "", "half"] {
        let refused = Cli::try_parse_from(["sluice", "run", &format!("--share={share}"), "--", "x"]);
        assert!(refused.is_err(), "{share}");
    }
}
