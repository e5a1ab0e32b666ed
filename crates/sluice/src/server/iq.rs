//! `sluice iq`: what programs ask for and what they need.

use std::process::ExitCode;

use anyhow::{Result, bail};
use sluice_api::autonomy::ProgramName;
use sluice_api::client::{Client, segment};
use sluice_api::recommendation::{NewRunDefault, ProgramAdvice, RightSize, RunDefault, Saving, Unchanged};

use super::lists::{millionths, now_ms, show};
use super::{client, consent};
use crate::cli::{IqArgs, Output};
use crate::moment::Moment;
use crate::quantity::{Memory, Share};
use crate::run::share_text;
use crate::table::Align::{Left, Right};

const MIB: u64 = 1 << 20;

pub(crate) fn iq(arguments: &IqArgs) -> Result<ExitCode> {
    let client = client(&arguments.at_server)?;
    if arguments.consent.is_some() || arguments.floor.is_some() || arguments.idle_after.is_some() {
        return consent::consent(&client, arguments);
    }
    if arguments.autonomy {
        return consent::list(&client, arguments);
    }
    if arguments.allow {
        return consent::allow(&client, arguments);
    }
    if arguments.undo {
        return undo(&client, arguments);
    }
    let until_ms = arguments.at.map_or_else(now_ms, Moment::ms);
    let from_ms = until_ms.saturating_sub(arguments.since.duration().as_millis() as u64);
    let tenant = arguments.tenant.as_ref().map_or_else(String::new, |tenant| format!("&tenant={tenant}"));
    let path = format!("/recommendations?from_ms={from_ms}&until_ms={}{tenant}", until_ms.max(from_ms + 1));
    let mut found: Vec<ProgramAdvice> = client.get(&path)?;
    found.retain(|advice| {
        arguments.program.as_ref().is_none_or(|part| advice.program.contains(part.as_str()))
    });
    if !arguments.all {
        found.retain(|advice| advice.recommendation.is_some());
    }
    if arguments.apply {
        return apply(&client, &found);
    }
    print(&found, arguments.output)?;
    Ok(ExitCode::SUCCESS)
}

/// Makes the recommendation for the one program that was found the default of its next runs.
fn apply(client: &Client, found: &[ProgramAdvice]) -> Result<ExitCode> {
    let [advice] = found else { bail!("{}", which(found.iter().map(|advice| advice.program.as_str()))) };
    let Some(RightSize { share_ppm, memory, .. }) = advice.recommendation else {
        bail!("there is no recommendation for {}", advice.program)
    };
    let (tenant, program) = (advice.tenant.clone(), advice.program.clone());
    let new = NewRunDefault { tenant, program, share_ppm, memory };
    let set: RunDefault = client.post("/run-defaults", &new)?;
    eprintln!(
        "sluice: the next runs of {} in {} get {} and {} unless they say otherwise; `sluice iq {:?} --undo` undoes it",
        set.program,
        set.tenant,
        share_text(set.share_ppm),
        memory_text(set.memory),
        set.program
    );
    Ok(ExitCode::SUCCESS)
}

/// Removes the default of the one program that the arguments name, and undoes what the server has
/// changed about it by itself.
fn undo(client: &Client, arguments: &IqArgs) -> Result<ExitCode> {
    let tenant = arguments.tenant.as_ref().map_or_else(String::new, |tenant| format!("?tenant={tenant}"));
    let mut set: Vec<RunDefault> = client.get(&format!("/run-defaults{tenant}"))?;
    set.retain(|set| arguments.program.as_ref().is_none_or(|part| set.program.contains(part.as_str())));
    let changed = consent::changed(client, arguments)?;
    let mut names: Vec<ProgramName> = set.iter().map(name_of).chain(changed.iter().cloned()).collect();
    names.sort();
    names.dedup();
    let [name] = &names[..] else { bail!("{}", which(names.iter().map(|name| name.program.as_str()))) };
    if changed.contains(name) {
        consent::undo(client, name)?;
    }
    let Some(default) = set.first() else { return Ok(ExitCode::SUCCESS) };
    let (tenant, program) = (segment(default.tenant.as_str()), segment(&default.program));
    let _: RunDefault = client.delete(&format!("/run-defaults?tenant={tenant}&program={program}"))?;
    eprintln!("sluice: the next runs of {} in {} get what they ask for", default.program, default.tenant);
    Ok(ExitCode::SUCCESS)
}

fn name_of(set: &RunDefault) -> ProgramName {
    ProgramName { tenant: set.tenant.clone(), program: set.program.clone() }
}

/// Says that one program has to be named.
pub(super) fn which<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.take(10).collect();
    match names.is_empty() {
        true => "there is no such program".to_owned(),
        false => format!(
            "name one program (and --tenant, where several have one of its name): {}",
            names.join(", ")
        ),
    }
}

fn print(programs: &[ProgramAdvice], output: Output) -> Result<()> {
    let columns = &[
        ("PROGRAM", Left),
        ("TENANT", Left),
        ("RUNS", Right),
        ("HOURS", Right),
        ("SHARE", Left),
        ("MEMORY", Left),
        ("SAVES", Left),
        ("SLOWED", Left),
        ("NEXT RUNS", Left),
    ];
    show(
        programs,
        output,
        "no program asks for more than it needs, as far as three runs show",
        columns,
        cells,
    )?;
    if output == Output::Table
        && let Some(first) = programs.iter().find(|program| program.recommendation.is_some())
    {
        eprintln!("\nTo follow the first once: {}", command(first));
        eprintln!("For all its next runs: sluice iq {:?} --tenant {} --apply", first.program, first.tenant);
    }
    Ok(())
}

fn cells(program: &ProgramAdvice) -> Vec<String> {
    let mut cells = vec![program.program.clone(), program.tenant.to_string()];
    let rest = match &program.recommendation {
        Some(found) => vec![
            found.runs.to_string(),
            format!("{:.1}", found.held_ms as f64 / 3_600_000.0),
            from_to(share_text(found.asked_share_ppm), share_text(found.share_ppm)),
            from_to(memory_text(found.asked_memory), memory_text(found.memory)),
            program.saves.as_ref().map_or_else(String::new, saving_text),
            slowed_text(found),
        ],
        None => {
            let why = match program.unchanged {
                Some(Unchanged::FewRuns) => "fewer than three runs have ended",
                _ => "it needs what it asks for",
            };
            let mut cells = vec![String::new(); 4];
            cells.extend([why.into(), String::new()]);
            cells
        }
    };
    cells.extend(rest);
    let set = program.run_default.as_ref();
    cells.push(set.map_or_else(String::new, |set| {
        format!("{}, {}", share_text(set.share_ppm), memory_text(set.memory))
    }));
    cells
}

fn from_to(asked: String, recommended: String) -> String {
    if asked == recommended { asked } else { format!("{asked} -> {recommended}") }
}

fn memory_text(bytes: u64) -> String {
    Memory::from_bytes(bytes).to_string()
}

/// `0.65 GPU, 1.30 EUR/h`
fn saving_text(saves: &Saving) -> String {
    let gpu = format!("{:.2} GPU", saves.share_ppm as f64 / 1e6);
    let currency = saves.currency.as_ref().map_or_else(String::new, |currency| format!(" {currency}"));
    match saves.micro_per_hour {
        Some(micro) => format!("{gpu}, {}{currency}/h", millionths(micro)),
        None => gpu,
    }
}

/// `0 of 23 runs; the worst by 3.1 %`
fn slowed_text(found: &RightSize) -> String {
    let of = format!("{} of {} runs", found.replay.slowed, found.runs);
    match found.replay.worst_percent {
        worst if worst >= 0.05 => format!("{of}; the worst by {worst:.1} %"),
        _ => of,
    }
}

/// How the program is run with what is recommended.
fn command(program: &ProgramAdvice) -> String {
    let Some(found) = &program.recommendation else { return String::new() };
    let memory = found.memory / MIB;
    format!(
        "sluice run --tenant {} -p {} --memory {memory}MiB -- {}",
        program.tenant,
        Share::from_ppm(found.share_ppm),
        program.program
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recommendation_is_shown_with_its_evidence_its_saving_and_how_to_follow_it() {
        let program: ProgramAdvice = serde_json::from_value(serde_json::json!({
            "tenant": "acme", "program": "python train.py",
            "recommendation": {
                "runs": 23, "held_ms": 360_000, "asked_share_ppm": 1_000_000, "share_ppm": 350_000,
                "asked_memory": 40_u64 << 30, "memory": 10752 * MIB, "memory_peak": 10_u64 << 30,
                "replay": { "slowed": 0, "worst_percent": 0.0 },
            },
            "saves": { "share_ppm": 650_000, "micro_per_hour": 1_300_000, "currency": "EUR" },
            "run_default": {
                "tenant": "acme", "program": "python train.py", "share_ppm": 350_000, "memory": 10752 * MIB, "set_at_ms": 1,
                "set_by": "t",
            },
        }))
        .unwrap();
        let expect = [
            "python train.py",
            "acme",
            "23",
            "0.1",
            "100% -> 35%",
            "40 GiB -> 10.5 GiB",
            "0.65 GPU, 1.3 EUR/h",
            "0 of 23 runs",
            "35%, 10.5 GiB",
        ];
        assert_eq!(cells(&program), expect);
        assert_eq!(command(&program), "sluice run --tenant acme -p 35% --memory 10752MiB -- python train.py");
    }

    #[test]
    fn one_program_has_to_be_named() {
        assert!(which(["a", "b"].into_iter()).contains("a, b"));
        assert!(which(std::iter::empty()).contains("no such program"));
    }
}
