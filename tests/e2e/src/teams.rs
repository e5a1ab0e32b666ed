//! A server and two nodes as real processes, and two teams that share them: one waits and learns
//! why, one is preempted, and the bill adds up.

mod account;
mod autonomy;
mod books;
mod disk;
mod gangs;
mod health;
mod iq;
mod live;
mod meters;
mod metrics;
mod moves;
mod networks;
mod overcommit;
mod running;
mod tiers;
mod tokens;
mod upgrades;
mod upkeep;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::node::sluice;
use crate::process;
use crate::{Test, expect_failure, logs, program_file, token_in};

pub(crate) use account::Account;
pub(crate) use running::Process;

use running::said;

/// What mostly waits.
pub(crate) const PATIENT_TESTS: &[Test] = &[
    ("teams: a node falls silent", a_node_falls_silent),
    ("teams: a node dies while its lease moves", moves::the_old_node_dies_meanwhile),
    ("iq: idle programs leave their GPU", autonomy::idle_programs_leave_their_gpu),
    ("iq: shares follow use", autonomy::shares_follow_use),
];

pub(crate) const TESTS: &[Test] = &[
    ("teams", teams),
    ("teams: two nodes in two networks, and PostgreSQL", networks::teams),
    ("teams: places and gangs", places_and_gangs),
    ("teams: bench and replay take leases", bench_and_replay),
    ("teams: a gang grows and makes room", gangs::a_gang_grows_and_makes_room),
    ("teams: a GPU becomes faulty", health::a_gpu_becomes_faulty),
    ("teams: where GPUs stand", health::where_gpus_stand),
    ("teams: a driver hangs", health::a_driver_hangs),
    ("teams: a driver call never returns", health::a_call_never_returns),
    ("teams: a node's disk is full", disk::a_nodes_disk_is_full),
    ("teams: an overcommitted pool", overcommit::an_overcommitted_pool),
    ("teams: overcommitted memory", overcommit::overcommitted_memory),
    ("teams: a lease outlives its token", tokens::a_lease_outlives_its_token),
    ("teams: a node is drained and forgotten", upkeep::a_node_is_drained_and_forgotten),
    ("teams: a node is upgraded under a program", upgrades::a_node_is_upgraded),
    ("teams: a lease moves to another node", moves::a_lease_moves),
    ("teams: running programs leave a node", moves::a_node_is_emptied),
    ("teams: the server dies while a lease moves", moves::the_server_dies_meanwhile),
    ("teams: a program moves so that another fits", live::a_program_moves_so_that_another_fits),
    ("teams: a program that cannot move starts again", live::a_program_that_cannot_move_starts_again),
    ("teams: a preempted program moves", live::a_preempted_program_moves),
    ("teams: programs leave a faulty GPU", live::programs_leave_a_faulty_gpu),
    ("teams: prices, budgets and invoices", books::prices_budgets_and_invoices),
    ("teams: the same work costs the same", meters::the_same_work_costs_the_same),
    ("iq: large requests are found", iq::large_requests_are_found),
    ("tiers: a premium service beside trainers", tiers::a_premium_service_beside_trainers),
    ("tiers: a promise is measured and credited", tiers::a_promise_is_measured_and_credited),
    ("metrics: rules", metrics::rules),
    ("metrics: pages, bills and dashboards agree", metrics::pages_bills_and_dashboards_agree),
];

/// Catches a hang; nothing takes this long.
const PATIENCE: Duration = Duration::from_secs(120);

const TENANTS: &str = "
tenants:
  - path: red
    quota: {limit: 1}
  - path: blue
    quota: {limit: 1}
prices:
  - {meter: reserved, price: 3600}
";

const GANG_TENANTS: &str = "
tenants:
  - path: red
  - path: blue
    quota: {guaranteed: 2.0}
";

fn teams() -> Result<()> {
    let installation = Installation::start("teams", TENANTS, &["two"], &[])?;
    installation.the_doctor_finds_nothing()?;
    installation.server_and_node_are_one_process()?;
    installation.learn_why_one_waits()?;
    installation.preempt_and_run_again()?;
    installation.nobody_goes_around_the_server()?;
    installation.the_bill_adds_up()?;
    installation.no_log_holds_a_secret()
}

/// What uses a GPU by itself takes a lease as programs do, is in the books, and gives it back.
fn bench_and_replay() -> Result<()> {
    let installation = Installation::start("own-leases", TENANTS, &[], &[])?;
    let red = &installation.red;
    let report = red.json(&["bench", "remoting", "--runs", "1"])?;
    ensure!(report["node"] == "one" && report["tcp"]["waiting_call_us"].as_f64() > Some(0.0), "{report}");
    let file = installation.folder.join("recorded.sluice").display().to_string();
    let program = program_file("counts.py").display().to_string();
    red.text(&["record", "-q", "-o", &file, "--", "python3", &program])?;
    let replay = red.json(&["replay", &file, "--tenant", "red"])?;
    ensure!(replay["differences_count"] == 0 && replay["waits"].as_u64() > Some(0), "{replay}");
    let leases = installation.admin.json(&["lease", "list", "--all"])?;
    let leases = leases.as_array().context("a list of leases")?;
    for name in ["sluice bench", "sluice replay"] {
        let lease = leases
            .iter()
            .find(|lease| lease["name"] == name)
            .with_context(|| format!("{name}: {leases:?}"))?;
        ensure!(lease["tenant"] == "red", "{lease}");
    }
    installation.wait_for_records(3).map(drop)
}

/// Three nodes: fractions share GPUs so that whole ones stay free for a gang, which starts as a
/// whole and is reclaimed as a whole.
fn places_and_gangs() -> Result<()> {
    let installation = Installation::start("gangs", GANG_TENANTS, &["two", "three"], &[])?;
    let (red, blue) = (&installation.red, &installation.blue);
    // First fit would put the second half where the first is and a third one anywhere; two halves
    // fill one GPU here.
    let mut halves = [red.program("half 1", &["-p", "0.5"])?, red.program("half 2", &["-p", "0.5"])?];
    for half in &mut halves {
        half.expect_line("ready")?;
    }
    let mut gang = red.gang("gang", &["--tasks", "2", "--duration", "10min"])?;
    gang.expect_line("ready")?;
    gang.expect_line("ready")?;
    let leases = installation.admin.json(&["lease", "list"])?;
    let nodes = |lease: &Value| -> Vec<String> {
        let places = lease["places"].as_array().into_iter().flatten();
        places.map(|place| place["node"].as_str().unwrap_or_default().to_owned()).collect()
    };
    ensure!(nodes(&leases[1]) == nodes(&leases[2]), "the halves are on different GPUs: {leases}");
    let [first, second] = &nodes(&leases[0])[..] else { bail!("no gang of two: {leases}") };
    ensure!(first != second && leases[0]["tasks"] == 2, "{leases}");

    // Blue is guaranteed two GPUs: the gang has to make room, both tasks of it, and waits again.
    let mut rightful = blue.gang("rightful gang", &["--tasks", "2"])?;
    gang.expect_message("preempted: its tenant has more than")?;
    rightful.expect_line("ready")?;
    rightful.expect_line("ready")?;
    let queue = red.wait_for(&["queue"], |queue| queue[0]["reason"].is_string())?;
    ensure!(queue[0]["tasks"] == 2 && queue[0]["attempt"] == 2, "{queue}");
    ensure!(queue[0]["reason"].as_str().is_some_and(|why| why.contains("2 tasks at once")), "{queue}");
    for half in &mut halves {
        half.go_on_to_its_end()?;
    }
    rightful.end_its_input()?;
    gang.expect_line("ready")?;
    gang.expect_line("ready")?;
    gang.end_its_input()?;

    let too_many = red.command(&["run", "--tasks", "9", "--", "true"]);
    expect_failure(&mut { too_many }, "a gang that never fits", 125, &["9 tasks at once", "room for 3"])?;
    let apart = red.command(&[
        "run", "--tasks", "3", "--share", "0.5", "--spread", "rack", "--hold", "5s", "--", "true",
    ]);
    expect_failure(&mut { apart }, "a gang that stands apart", 125, &["no node says in which rack it stands"])
}

/// What runs on a node that reports no more waits in the queue again, and runs elsewhere.
fn a_node_falls_silent() -> Result<()> {
    let mut installation =
        Installation::start("silence", "tenants: [{path: red}, {path: blue}]", &["two"], &[])?;
    let (red, blue) = (installation.red.clone(), installation.blue.clone());
    let mut programs = vec![red.program("silent 1", &[])?, red.program("silent 2", &[])?];
    for program in &mut programs {
        program.expect_line("ready")?;
    }
    let on_two = |lease: &&Value| lease["places"][0]["node"] == "two";
    let leases = red.json(&["lease", "list"])?;
    let there = leases.as_array().into_iter().flatten().find(on_two).context("two programs on two nodes")?;
    let id = there["id"].clone();
    let said_on_two = |program: &Process| said(&program.messages).contains("node two");
    let (mut moves, mut stays): (Vec<Process>, Vec<Process>) = programs.into_iter().partition(said_on_two);
    let (moves, stays) = (moves.first_mut().context("on two")?, stays.first_mut().context("on one")?);

    let node = installation.others.first_mut().context("node two")?;
    node.signal(libc::SIGSTOP);
    moves.expect_message("its node two does not report any more")?;
    stays.go_on_to_its_end()?;
    moves.expect_line("ready")?;
    let leases = red.json(&["lease", "list"])?;
    let again = leases.as_array().into_iter().flatten().find(|lease| lease["id"] == id);
    let again = again.context("the lease")?;
    ensure!(again["attempt"] == 2 && again["places"][0]["node"] == "one", "{again}");

    // It comes back, ends what it should not have, and is used again.
    node.signal(libc::SIGCONT);
    let mut beside = blue.program("beside", &[])?;
    beside.expect_line("ready")?;
    ensure!(said_on_two(&beside), "{}", said(&beside.messages));
    beside.go_on_to_its_end()?;
    moves.go_on_to_its_end()?;
    let log = installation.admin.text(&["audit", "log"])?;
    ensure!(log.contains("node.lost"), "{log}");
    Ok(())
}

/// `sluice up` and more nodes, with a GPU each.
pub(crate) struct Installation {
    folder: PathBuf,
    admin: Account,
    pub(crate) red: Account,
    blue: Account,
    /// The address of the first node.
    pub(crate) node: String,
    up: Process,
    others: Vec<Process>,
}

impl Installation {
    /// `options` are further ones of `sluice up`.
    pub(crate) fn start(
        name: &str,
        tenants: &str,
        others: &[&str],
        options: &[&str],
    ) -> Result<Installation> {
        Installation::start_with(name, tenants, others, options, &[])
    }

    /// The environment is of `sluice up` alone.
    fn start_with(
        name: &str,
        tenants: &str,
        others: &[&str],
        options: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Installation> {
        let folder = crate::target_folder().join(name);
        let _ = std::fs::remove_dir_all(&folder); // it may not be there yet
        let data = folder.join("data");
        let journal = |name: &str| folder.join(name).display().to_string();
        std::fs::create_dir_all(&folder)?;

        let mut command = Command::new(sluice());
        command.args(["up", "--listen", "127.0.0.1:0", "--node-listen", "127.0.0.1:0", "--grace", "30"]);
        command.envs(environment.iter().copied());
        if !options.contains(&"--gpus") {
            command.args(["--gpus", "software:1,4GiB"]);
        }
        command.args(options).args(["--name", "one", "--journal", &journal("one"), "--data"]);
        let mut up = Process::start("up", command.arg(&data))?;
        let server = up.listening()?;
        let node = up.listening()?;

        let token = token_in(&data.join("admin.json"))?;
        let admin = Account { server: server.clone(), token, network: None };
        let mut installation = Installation::begin(folder, admin, node, up, tenants)?;
        for name in others {
            let mut command = Command::new(sluice());
            command.args(["node", "--listen", "127.0.0.1:0", "--join", &server]);
            installation.join(name, &mut command)?;
        }
        installation.wait_for_gpus(others.len() + 1)?;
        Ok(installation)
    }

    /// A server with its tenants, and no further node yet.
    fn begin(
        folder: PathBuf,
        admin: Account,
        node: String,
        up: Process,
        tenants: &str,
    ) -> Result<Installation> {
        let file = folder.join("tenants.yaml");
        std::fs::write(&file, tenants)?;
        admin.text(&["apply", "-f", &file.display().to_string()])?;
        let (red, blue) = (admin.make("red", "member")?, admin.make("blue", "tenant-admin")?);
        Ok(Installation { folder, admin, red, blue, node, up, others: Vec::new() })
    }

    /// A node that this command starts, with a software GPU unless it says otherwise.
    fn join(&mut self, name: &str, command: &mut Command) -> Result<()> {
        let token = self.admin.make("/", "node")?.token;
        if !command.get_args().any(|argument| argument == "--gpus") {
            command.args(["--gpus", "software:1,4GiB"]);
        }
        command.args(["--name", name, "--journal"]);
        command.arg(self.folder.join(name)).env("SLUICE_TOKEN", token);
        let mut node = Process::start(&format!("node {name}"), command)?;
        node.listening()?;
        self.others.push(node);
        Ok(())
    }

    /// At least so many.
    /// The way to the server and its nodes is clear, and the token is what it should be.
    fn the_doctor_finds_nothing(&self) -> Result<()> {
        let findings = self.red.json(&["doctor"])?;
        let texts: Vec<&str> = findings
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|finding| finding["text"].as_str())
            .collect();
        for words in ["role member for red", "GPUs that can be leased: 2 of 2", "node two can be reached"] {
            ensure!(texts.iter().any(|text| text.contains(words)), "no {words:?}: {findings}");
        }
        Ok(())
    }

    /// What `sluice up` starts beside itself is workers.
    fn server_and_node_are_one_process(&self) -> Result<()> {
        for child in process::children(self.up.child.id()) {
            // One that has ended meanwhile has none.
            let command = std::fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
            ensure!(
                command.is_empty() || command.contains("\0worker\0"),
                "sluice up has started {command:?}"
            );
        }
        Ok(())
    }

    fn wait_for_gpus(&self, count: usize) -> Result<()> {
        let all = |gpus: &Value| {
            let gpus = gpus.as_array().into_iter().flatten();
            gpus.filter(|gpu| gpu["online"] == true).count() >= count
        };
        self.admin.wait_for(&["gpus"], all).map(drop)
    }

    pub(crate) fn administrator(&self) -> &Account {
        &self.admin
    }

    /// The server's data folder.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// What the server has said so far.
    pub(crate) fn said(&self) -> String {
        said(&self.up.messages)
    }

    /// Red's quota is one GPU: its second program waits for the first, whatever else is free.
    fn learn_why_one_waits(&self) -> Result<()> {
        let red = &self.red;
        let mut first = red.program("red 1", &[])?;
        first.expect_line("ready")?;
        let mut waiting = red.program("red 2", &[])?;
        let queue = red.wait_for(&["queue"], |queue| queue[0]["reason"].is_string())?;
        let why = queue[0]["reason"].as_str().unwrap_or_default();
        ensure!(why.contains("red") && queue[0]["position"] == 1, "{queue}");
        waiting.expect_message("You are next")?;

        let blue = &self.blue;
        let mut beside = blue.program("blue 1", &["-p", "0.5"])?;
        beside.expect_line("ready")?;
        let sessions = blue.json(&["sessions"])?;
        let tenants: Vec<&Value> = sessions.as_array().into_iter().flatten().map(|s| &s["tenant"]).collect();
        ensure!(tenants.iter().all(|tenant| **tenant == "blue"), "blue sees sessions of others: {sessions}");

        first.go_on_to_its_end()?;
        waiting.expect_line("ready")?;
        waiting.go_on_to_its_end()?;
        beside.go_on_to_its_end()
    }

    fn preempt_and_run_again(&self) -> Result<()> {
        let blue = &self.blue;
        let mut program = blue.program("blue 2", &[])?;
        program.expect_line("ready")?;
        let leases = blue.wait_for(&["lease", "list"], |leases| leases[0]["state"] == "running")?;
        let id = leases[0]["id"].to_string();
        blue.text(&["lease", "preempt", &id])?;
        program.expect_message("preempted: ")?;
        program.expect_line("ready").context("the program did not run again")?;
        let leases = blue.json(&["lease", "list"])?;
        ensure!(leases[0]["attempt"] == 2, "{leases}");
        let shown = blue.json(&["lease", "show", &id])?;
        let events = shown["history"]["items"].as_array().context("a history")?;
        let preempted =
            events.iter().find(|event| event["action"] == "lease.preempted").context("its notice")?;
        let by = self.blue.token.split('_').nth(1).context("a token has an id")?;
        ensure!(preempted["actor"].as_str().is_some_and(|actor| actor.starts_with(by)), "{shown}");
        program.go_on_to_its_end()
    }

    fn nobody_goes_around_the_server(&self) -> Result<()> {
        let mut command = Command::new(sluice());
        command.args(["run", "--node", &self.node, "--", "true"]);
        expect_failure(&mut command, "around the server", 125, &["lends through", "SLUICE_SERVER"])?;
        let nobody = Account { token: "slc_no_token".into(), ..self.admin.clone() };
        let mut command = nobody.command(&["run", "--", "true"]);
        expect_failure(&mut command, "no token", 125, &["token"])
    }

    /// Every record is there, a lease's records tile the time that it was held, and the bill is
    /// their sum.
    fn the_bill_adds_up(&self) -> Result<()> {
        let red = &self.red;
        red.wait_for(&["lease", "list"], |leases| {
            leases.as_array().is_some_and(|leases| leases.iter().all(|lease| lease["state"] == "ended"))
        })?;
        // The second program of blue ran twice: five attempts have five last records.
        self.check_bill(&self.wait_for_records(5)?)?;
        for gpu in self.admin.json(&["gpus"])?.as_array().context("GPUs")? {
            ensure!(gpu["share_leased_ppm"] == 0 && gpu["memory_leased"] == 0, "{gpu}");
        }
        self.admin.text(&["audit", "verify"])?;
        Ok(())
    }

    /// The bill is the sum of these records, which are all there are.
    fn check_bill(&self, records: &[Value]) -> Result<()> {
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        let reserved: u64 = records
            .iter()
            .map(|r| number(&r["share_ppm"]) * (number(&r["until_ms"]) - number(&r["from_ms"])))
            .sum();
        let used: u64 = records.iter().map(|r| number(&r["used_ppm_ms"])).sum();
        ensure!(used > 0, "no GPU time was recorded");
        let billed = |bill: &Value, meter: &str| -> u64 {
            let lines = bill["lines"].as_array().into_iter().flatten();
            lines.filter(|line| line["meter"] == meter).map(|line| number(&line["amount"])).sum()
        };
        let bill = self.admin.json(&["bill"])?;
        ensure!(billed(&bill, "reserved") == reserved, "journals say {reserved}: {bill}");
        ensure!(billed(&bill, "used") == used, "journals say {used}: {bill}");
        let lines = bill["lines"].as_array().context("lines")?;
        ensure!(
            lines.iter().map(|line| number(&line["cost_micro"])).sum::<u64>() == number(&bill["total_micro"])
        );
        ensure!(number(&bill["total_micro"]) > 0, "{bill}");
        Ok(())
    }

    /// What server, nodes and programs have said holds no token, though all of them have used some.
    fn no_log_holds_a_secret(&self) -> Result<()> {
        let mut tokens = vec![self.admin.token.clone(), self.red.token.clone(), self.blue.token.clone()];
        tokens.push(token_in(&self.data().join("node.json"))?);
        let mut count = 0;
        for file in std::fs::read_dir(logs())? {
            let file = file?;
            if !file.file_name().to_string_lossy().starts_with("teams-") {
                continue;
            }
            count += 1;
            let text = std::fs::read(file.path())?;
            let text = String::from_utf8_lossy(&text);
            for token in &tokens {
                // `slc_ID_SECRET`; the id may be shown, the secret may hold the sign that parts
                // them.
                let secret = token.splitn(3, '_').nth(2).filter(|secret| secret.len() > 40);
                let secret = secret.context("a token has a secret")?;
                ensure!(!text.contains(secret), "{} holds a token", file.path().display());
            }
        }
        ensure!(count >= 4, "{count} logs of the server, a node and programs");
        Ok(())
    }

    /// The usage records on all nodes' disks, once so many attempts have written their last one and
    /// the ledger has them all.
    fn wait_for_records(&self, attempts: usize) -> Result<Vec<Value>> {
        let deadline = Instant::now() + PATIENCE;
        let records = loop {
            let records = self.journaled()?;
            if records.iter().filter(|record| record["last"] == true).count() == attempts {
                break records;
            }
            ensure!(Instant::now() < deadline, "{records:?}");
            std::thread::sleep(Duration::from_millis(20));
        };
        self.admin.wait_for(&["bill"], |bill| bill["records"] == records.len())?;
        Ok(records)
    }

    /// The usage records on all nodes' disks.
    fn journaled(&self) -> Result<Vec<Value>> {
        let mut records = Vec::new();
        for folder in std::fs::read_dir(&self.folder)? {
            let journal = folder?.path().join("usage.journal");
            if !journal.exists() {
                continue;
            }
            let text = std::fs::read_to_string(journal)?;
            for line in text.lines() {
                let (_, json) = line.split_once(' ').context("a checksum and a record")?;
                records.push(serde_json::from_str(json)?);
            }
        }
        Ok(records)
    }
}
