//! Metrics as Prometheus sees them: a real one scrapes a server and a node, each dashboard's query
//! has an answer, each alert has a test, and what was used is what the bill says.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Output;

use super::*;
use crate::Skipped;

/// Whoever spends this has a budget to show.
const TENANTS: &str = "
currency: EUR
tenants:
  - path: red
    quota: {guaranteed: 0.5, limit: 1}
    budget: {amount: 1000, per: ever, then: warn}
  - path: blue
prices:
  - {meter: reserved, price: 3600}
  - {meter: used, price: 3600}
";

/// How often the test's Prometheus scrapes and evaluates.
const SCRAPE_EVERY: &str = "1s";

/// The panels of dashboards for dcgm-exporter that a GPU of ours has figures for: what each shows,
/// and what is around it. One for the use of tensor cores has none, since NVML does not tell it.
const DCGM_PANELS: [(&str, &str, &str, &str); 7] = [
    ("temperature", "DCGM_FI_DEV_GPU_TEMP", "", ""),
    ("mean temperature", "DCGM_FI_DEV_GPU_TEMP", "avg(", ")"),
    ("power", "DCGM_FI_DEV_POWER_USAGE", "", ""),
    ("power of all", "DCGM_FI_DEV_POWER_USAGE", "sum(", ")"),
    ("clock of the multiprocessors in Hz", "DCGM_FI_DEV_SM_CLOCK", "", " * 1000000"),
    ("utilisation", "DCGM_FI_DEV_GPU_UTIL", "", ""),
    ("memory", "DCGM_FI_DEV_FB_USED", "", ""),
];

/// `promtool` on the rules, and on their tests: each alert fires when it should and not otherwise.
pub(super) fn rules() -> Result<()> {
    let promtool = tool("promtool")?;
    let folder = crate::root().join("deploy/prometheus");
    for arguments in [["check", "rules", "sluice.rules.yaml"], ["test", "rules", "sluice.rules.test.yaml"]] {
        succeed(Command::new(&promtool).args(arguments).current_dir(&folder))?;
    }
    let rules = std::fs::read_to_string(folder.join("sluice.rules.yaml"))?;
    let tests = std::fs::read_to_string(folder.join("sluice.rules.test.yaml"))?;
    let mut pages = BTreeSet::new();
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        let fires = format!("alertname: {alert}\n        exp_alerts:\n          - ");
        let rests = format!("alertname: {alert}, exp_alerts: []");
        ensure!(
            tests.contains(&fires) && tests.contains(&rests),
            "{alert} has no test that it fires, and that it does not"
        );
    }
    for page in rules.lines().filter_map(|line| line.trim().strip_prefix("runbook: ")) {
        pages.insert(page);
        ensure!(crate::root().join(page).exists(), "there is no {page}");
    }
    ensure!(pages.len() > 5, "{pages:?}");
    Ok(())
}

/// One installation, scraped while programs of two tenants run, one waits, and all of them end.
pub(super) fn pages_bills_and_dashboards_agree() -> Result<()> {
    let library = crate::target_folder().join("release/libfake_nvml.so").display().to_string();
    let facts = crate::target_folder().join("metrics-gpu-facts");
    File::create(&facts)?;
    let installation = Installation::start_with(
        "metrics",
        TENANTS,
        &[],
        &["--metrics", "127.0.0.1:0", "--node-metrics", "127.0.0.1:0", "--nvml", &library],
        &[("FAKE_NVML", &facts.display().to_string())],
    )?;
    let [server, node] = installation.metrics_addresses()?;
    installation.tenants_see_no_metrics()?;

    let red = &installation.red;
    let mut command = red.command(&["run", "-p", "1", "--memory", "64MiB", "--", "python3"]);
    command.arg(program_file("compute.py")).envs([("START", "input"), ("SECONDS", "3"), ("END", "input")]);
    let mut first = Process::start("counted 1", &mut command)?;
    first.expect_line("ready")?;
    let mut second = red.program("counted 2", &["-p", "0.5"])?;
    red.wait_for(&["queue"], |queue| queue[0]["reason"].is_string())?;
    let page = wait_for_page(&node, |page| page.contains("DCGM_FI_DEV_GPU_TEMP{"))?;
    ensure!(page.contains("} 40") && page.contains("DCGM_FI_DEV_POWER_USAGE"), "{page}");
    ensure!(
        page.contains("tenant=\"red\"") && page.contains("sluice_lease_share_guaranteed_ratio"),
        "{page}"
    );
    let page = wait_for_page(&server, |page| page.contains("sluice_queue_depth{reason=\"limit\"} 1"))?;
    ensure!(
        page.contains("sluice_leader 1") && page.contains("sluice_lease_events_total{event=\"granted\"} 1"),
        "{page}"
    );
    check_metrics(&[&server, &node])?;

    // Without Prometheus the rest is the bill against the node's own page.
    let prometheus =
        tool("prometheus").ok().map(|binary| Prometheus::start(&binary, &[&server, &node])).transpose()?;
    first.tell("0")?;
    while first.line()? != "PASS" {}
    if let Some(prometheus) = &prometheus {
        prometheus.has_series_for_all_dashboards()?;
        prometheus.has_series_for_dashboards_of_dcgm()?;
    }
    first.end_its_input()?;
    second.expect_line("ready")?;
    second.go_on_to_its_end()?;
    let records = installation.wait_for_records(2)?;
    installation.check_bill(&records)?;
    let bill = installation.admin.json(&["bill"])?;
    for (meter, metric) in
        [("used", "sluice_lease_gpu_seconds_total"), ("reserved", "sluice_lease_reserved_gpu_seconds_total")]
    {
        let billed_ns = billed(&bill, meter);
        let shown_ns = wait_for_sum(&node, metric, billed_ns)?;
        ensure!(shown_ns == billed_ns, "{metric} adds up to {shown_ns} ns, the bill says {billed_ns}");
        if let Some(prometheus) = &prometheus {
            prometheus.adds_up_to(metric, billed_ns)?;
        }
    }
    match prometheus {
        Some(_) => Ok(()),
        None => Err(Skipped(
            "no Prometheus: pages and bills agree, dashboards were not checked (apt install prometheus)"
                .into(),
        )
        .into()),
    }
}

impl Installation {
    /// `HOST:PORT` of the server's metrics and of the node's, as `sluice up` says them.
    fn metrics_addresses(&self) -> Result<[String; 2]> {
        self.up.expect_message("metrics at")?;
        let said = self.said();
        let mut found = said.lines().filter_map(|line| line.strip_prefix("sluice: metrics at http://"));
        let mut next = || Some(found.next()?.trim_end_matches("/metrics").to_owned());
        Ok([next().context("the server's")?, next().context("the node's")?])
    }

    /// The API serves metrics to tokens for the whole installation, and to no tenant, whatever its
    /// role.
    fn tenants_see_no_metrics(&self) -> Result<()> {
        let server = self.admin.server().strip_prefix("http://").context("plain text")?;
        let watcher = self.admin.make("/", "viewer")?;
        let checks = [(&self.red, 403), (&self.blue, 403), (&watcher, 200), (&self.admin, 200)];
        for (account, status) in checks {
            let authorization = format!("Authorization: Bearer {}\r\n", account.token());
            let (found, page) = get(server, "/metrics", &authorization)?;
            ensure!(
                found == status && page.contains("sluice_leader 1") == (status == 200),
                "{found}: {page}"
            );
        }
        let (found, _) = get(server, "/metrics", "")?;
        ensure!(found == 401, "{found} without a token");
        Ok(())
    }
}

fn billed(bill: &Value, meter: &str) -> u64 {
    let lines = bill["lines"].as_array().into_iter().flatten();
    lines.filter(|line| line["meter"] == meter).filter_map(|line| line["amount"].as_u64()).sum()
}

/// Until the page is as wanted.
fn wait_for_page(address: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (status, page) = get(address, "/metrics", "")?;
        ensure!(status == 200, "{status}: {page}");
        if wanted(&page) {
            return Ok(page);
        }
        ensure!(Instant::now() < deadline, "{page}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The sum of a counter over all leases, in nanoseconds, once it is this much, or as it is when
/// leases are about to vanish.
fn wait_for_sum(address: &str, metric: &str, expect_ns: u64) -> Result<u64> {
    let sum = |page: &str| -> u64 {
        let samples = page.lines().filter(|line| line.starts_with(&format!("{metric}{{")));
        let values = samples.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
        values.map(|seconds| (seconds * 1e9).round() as u64).sum()
    };
    wait_for_page(address, |page| sum(page) == expect_ns).map(|page| sum(&page))
}

/// `promtool check metrics`: names, types, units and help. It has objections to some of
/// dcgm-exporter's names, which are not ours to choose.
fn check_metrics(addresses: &[&str]) -> Result<()> {
    let Ok(promtool) = tool("promtool") else { return Ok(()) };
    for address in addresses {
        let (_, page) = get(address, "/metrics", "")?;
        let mut command = Command::new(&promtool);
        let mut child = command
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        child.stdin.take().context("piped above")?.write_all(page.as_bytes())?;
        let Output { stdout, stderr, .. } = child.wait_with_output()?;
        let said = [stdout, stderr].concat();
        let said = String::from_utf8_lossy(&said);
        // Labels of GPUs are dcgm-exporter's, on our own metrics of GPUs as well.
        let is_label = |line: &str| line.contains("label names should be written in 'snake_case'");
        let own = said
            .lines()
            .filter(|line| !line.starts_with("DCGM_") && !is_label(line) && !line.trim().is_empty());
        let own: Vec<&str> = own.collect();
        ensure!(own.is_empty(), "{address}: {own:?}");
    }
    Ok(())
}

/// Prometheus on a folder of its own; dropping it ends it.
struct Prometheus {
    address: String,
    /// Ends with this value.
    process: Process,
}

impl Prometheus {
    fn start(binary: &Path, targets: &[&str]) -> Result<Prometheus> {
        let folder = crate::target_folder().join("prometheus");
        let _ = std::fs::remove_dir_all(&folder); // it may not be there yet
        std::fs::create_dir_all(&folder)?;
        let rules = crate::root().join("deploy/prometheus/sluice.rules.yaml");
        let config = serde_json::json!({
            "global": { "scrape_interval": SCRAPE_EVERY, "evaluation_interval": SCRAPE_EVERY },
            "rule_files": [rules.display().to_string()],
            "scrape_configs": [{ "job_name": "sluice", "static_configs": [{ "targets": targets }] }],
        });
        // YAML has JSON as a part.
        std::fs::write(folder.join("prometheus.yml"), config.to_string())?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let mut command = Command::new(binary);
        command.arg(format!("--config.file={}", folder.join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", folder.join("data").display()));
        command.arg(format!("--web.listen-address={address}"));
        let process = Process::start("prometheus", &mut command)?;
        let prometheus = Prometheus { address, process };
        prometheus.process.expect_message("Server is ready to receive web requests")?;
        prometheus.wait_for(&format!("sum(up) == {}", targets.len()))?;
        Ok(prometheus)
    }

    /// Each query of each dashboard, for all values of its variables.
    fn has_series_for_all_dashboards(&self) -> Result<()> {
        let mut queries = 0;
        for file in std::fs::read_dir(crate::root().join("deploy/grafana"))? {
            let path = file?.path();
            let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
            let variables = dashboard["templating"]["list"].as_array().context("variables")?;
            let variables = variables.iter().filter_map(|variable| variable["name"].as_str());
            let variables: Vec<String> = variables.map(|name| format!("${name}")).collect();
            for panel in dashboard["panels"].as_array().context("panels")? {
                for target in panel["targets"].as_array().context("targets")? {
                    let query = target["expr"].as_str().context("a query")?;
                    let query =
                        variables.iter().fold(query.to_owned(), |query, name| query.replace(name, ".*"));
                    self.wait_for(&query)
                        .with_context(|| format!("{}: {}", path.display(), panel["title"]))?;
                    queries += 1;
                }
            }
        }
        ensure!(queries > 50, "only {queries} queries");
        Ok(())
    }

    /// What dashboards that were made for dcgm-exporter ask: each panel has series of its own, and
    /// the values that they choose from are there.
    fn has_series_for_dashboards_of_dcgm(&self) -> Result<()> {
        for label in ["instance", "gpu"] {
            self.wait_for(&format!("count by ({label}) (DCGM_FI_DEV_GPU_TEMP{{{label}!=\"\"}})"))?;
        }
        for (title, metric, before, after) in DCGM_PANELS {
            let query = format!("{before}{metric}{{instance=~\".*\", gpu=~\".*\"}}{after}");
            let series = self.wait_for(&query).with_context(|| title.to_owned())?;
            // Their legends name the GPU.
            let is_named = |series: &Value| series["metric"]["gpu"].is_string();
            let has_names =
                before.is_empty() == series.as_array().is_some_and(|all| all.iter().all(is_named));
            ensure!(has_names, "{title}: {series}");
        }
        Ok(())
    }

    /// Asks until there is a series.
    fn wait_for(&self, query: &str) -> Result<Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.ask(query)?;
            if answer.as_array().is_some_and(|series| !series.is_empty()) {
                return Ok(answer);
            }
            ensure!(Instant::now() < deadline, "no series for {query}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn ask(&self, query: &str) -> Result<Value> {
        let escaped: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let (status, body) = get(&self.address, &format!("/api/v1/query?query={escaped}"), "")?;
        ensure!(status == 200, "{query}: {status}: {body}");
        let answer: Value = serde_json::from_str(&body)?;
        Ok(answer["data"]["result"].clone())
    }

    /// As far as floating point goes.
    fn adds_up_to(&self, metric: &str, expect_ns: u64) -> Result<()> {
        let expect_s = expect_ns as f64 / 1e9;
        let query = format!("abs(sum(last_over_time({metric}[1h])) - {expect_s}) < 1e-6");
        self.wait_for(&query).map(drop)
    }
}

/// A program of Debian's package `prometheus`: the one in PATH, or else unpacked below the target
/// folder, without installing it.
fn tool(name: &str) -> Result<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    if let Some(found) = std::env::split_paths(&paths).map(|path| path.join(name)).find(|path| path.is_file())
    {
        return Ok(found);
    }
    let folder = crate::target_folder().join("prometheus-package");
    let unpacked = folder.join("usr/bin").join(name);
    if !unpacked.is_file() {
        let script = "apt-get download -q prometheus && dpkg-deb -x prometheus_*.deb .";
        std::fs::create_dir_all(&folder)?;
        let fetched = Command::new("sh").args(["-c", script]).current_dir(&folder).output();
        if !fetched.is_ok_and(|output| output.status.success()) || !unpacked.is_file() {
            return Err(Skipped(format!("no {name} (apt install prometheus)")).into());
        }
    }
    Ok(unpacked)
}

fn succeed(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| process::show(command))?;
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", process::show(command));
    Ok(())
}

/// Status and body of an answer in plain HTTP.
fn get(address: &str, path: &str, headers: &str) -> Result<(u16, String)> {
    let mut socket = TcpStream::connect(address).with_context(|| address.to_owned())?;
    socket.set_read_timeout(Some(PATIENCE))?;
    // In HTTP/1.0 nothing comes in chunks.
    write!(socket, "GET {path} HTTP/1.0\r\nHost: {address}\r\n{headers}\r\n")?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("{answer:?}"))?;
    let status =
        head.split(' ').nth(1).and_then(|status| status.parse().ok()).with_context(|| head.to_owned())?;
    Ok((status, body.to_owned()))
}
