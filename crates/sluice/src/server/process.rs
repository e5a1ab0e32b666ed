//! `sluice server` and `sluice up`: the control plane in this process.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use sluice_api::client::{ADMIN_FILE, NODE_FILE, Settings};
use sluice_node::NodeConfig;
use sluice_server::{Certificate, Config, Database, Running};

use crate::cli::{
    BackupArgs, BooksArgs, MetricsArgs, RestoreArgs, ServerArgs, ServerCommandArgs, TlsArgs, UpArgs,
};
use crate::output;
use crate::place::{self, EndSignals};
use crate::progress::Progress;
use crate::quantity::{Memory, SwapFile};
use crate::server::join::{data, membership};
use crate::server::web;

/// `sluice server`.
pub(crate) fn server(arguments: &ServerCommandArgs) -> Result<ExitCode> {
    let tls = arguments.tls_args();
    let metrics = arguments.server.metrics.exporter(&tls, arguments.server.data.as_deref())?;
    let config = config(&arguments.server, &tls)?;
    sluice_server::serve(&Config { advertise: arguments.advertise.clone(), metrics, ..config })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn backup(arguments: &BackupArgs) -> Result<ExitCode> {
    let (data, database) = books(&arguments.books)?;
    let mut progress = Progress::new();
    copied(sluice_server::back_up(&data, database.as_ref(), &arguments.to, &mut |rows, all| {
        progress.at(|| progress_line(rows, all))
    })?)
}

pub(crate) fn restore(arguments: &RestoreArgs) -> Result<ExitCode> {
    let (data, database) = books(&arguments.books)?;
    let mut progress = Progress::new();
    let mut told = |rows, all| progress.at(|| progress_line(rows, all));
    copied(sluice_server::restore(&arguments.from, &data, database.as_ref(), &mut told)?)
}

fn progress_line(rows: u64, all: u64) -> String {
    // There may be more by now than there were when they were counted.
    let percent = (rows.min(all) * 100).checked_div(all).unwrap_or(100);
    format!("{rows} of {all} rows copied ({percent}%)")
}

fn books(arguments: &BooksArgs) -> Result<(PathBuf, Option<Database>)> {
    Ok((data(arguments.data.as_deref())?, database(arguments.database.as_deref())?))
}

fn copied(rows: u64) -> Result<ExitCode> {
    eprintln!("sluice: {rows} rows copied");
    Ok(ExitCode::SUCCESS)
}

fn config(arguments: &ServerArgs, tls: &TlsArgs) -> Result<Config> {
    let certificate = place::certificate(&arguments.listen, tls, arguments.data.as_deref())?;
    Ok(Config {
        listen: arguments.listen.clone(),
        tls: certificate.map(|(chain, key)| Certificate { chain, key }),
        folder: data(arguments.data.as_deref())?,
        database: database(arguments.database.as_deref())?,
        advertise: None,
        requests_per_s: arguments.requests_per_second,
        failures_per_s: arguments.failures_per_second,
        grace_ms: u64::from(arguments.grace) * 1000,
        quiet_ms: u64::from(arguments.gpu_quiet) * 1000,
        node_idle_ms: arguments.node_idle_after.map(|time| time.duration().as_millis() as u64),
        metrics: None,
        webhook_allow: arguments.webhook_allow.clone(),
        mail: arguments.mail.config(),
        otlp: arguments.otlp.clone(),
        half_life_ms: arguments.use_half_life.map(|time| (time.duration().as_millis() as u64).max(1000)),
    })
}

fn database(named: Option<&str>) -> Result<Option<Database>> {
    let database = match named {
        Some(text) => Database::parse(text).map(Some).map_err(|why| format!("--database: {why}")),
        None => Database::of_environment(),
    };
    database.map_err(anyhow::Error::msg)
}

/// `sluice up`: a server and a node until SIGINT or SIGTERM. The node ends first, so that the
/// server takes its last records.
pub(crate) fn up(arguments: &UpArgs) -> Result<ExitCode> {
    let signals = EndSignals::block(&[])?;
    let MetricsArgs { metrics, metrics_token_file } = &arguments.server.metrics;
    ensure!(
        metrics.is_some() || arguments.node_metrics.is_some() || metrics_token_file.is_none(),
        "--metrics-token-file says to whom metrics are served: it needs --metrics or --node-metrics"
    );
    let config = config(&arguments.server, &arguments.tls)?;
    let data = data(arguments.server.data.as_deref())?;
    let metrics =
        place::metrics(metrics.as_deref(), metrics_token_file.as_deref(), &arguments.tls, Some(&data))?;
    let server = Running::start(&Config { metrics, ..config })?;
    output::announce(&format!("listening on {}", server.url()));
    if let Some(url) = server.metrics_url() {
        sluice_log::tell(&format!("metrics at {url}"));
    }
    say_web_view(arguments.server.data.as_deref());
    let lent = lend(arguments, server.url(), signals);
    match (server.stop(), lent) {
        // Why the server ended is why the node found none.
        (Err(server), Err(node)) => bail!("{server}; and then the node: {node:#}"),
        (stopped, lent) => {
            stopped?;
            lent
        }
    }
}

/// Says where the web view is. Where no link can be made, the server runs all the same, and
/// `sluice web` makes one later.
fn say_web_view(data_folder: Option<&Path>) {
    // The link signs its holder in.
    if sluice_log::is_collected() {
        return;
    }
    let link = data(data_folder).and_then(|folder| {
        let settings = Settings::read(&folder.join(ADMIN_FILE))?;
        web::link(&settings.context("the control plane left no token for the administrator")?.client())
    });
    match link {
        Ok((link, until)) => sluice_log::tell(&format!(
            "web view, signed in as the administrator, once, until {until}: {link}"
        )),
        Err(error) => sluice_log::tell(&format!(
            "no link to the web view could be made: {}",
            output::with_causes(&error)
        )),
    }
}

/// The node of `sluice up`.
fn lend(arguments: &UpArgs, server: &str, signals: EndSignals) -> Result<ExitCode> {
    let folder = data(arguments.server.data.as_deref())?;
    let settings = Settings::read(&folder.join(NODE_FILE))?;
    let token = settings.context("the control plane left no token for the node")?.token;
    let listen = match &arguments.node_listen {
        Some(listen) => listen.clone(),
        None => {
            let (host, _) = arguments.server.listen.rsplit_once(':').context("--listen is HOST:PORT")?;
            format!("{host}:7583")
        }
    };
    let (listen, tls) = place::listening(&listen, &arguments.tls, Some(&folder))?;
    let join = membership(&arguments.membership, server, token, &folder)?;
    sluice_log::tell(&format!("programs and commands find it by: export SLUICE_SERVER={server}"));
    let config = NodeConfig {
        listen: vec![listen],
        tls,
        nvml: arguments.nvml.clone(),
        driver_patience: place::driver_patience(arguments.driver_patience)?,
        host_memory: place::host_memory(arguments.host_memory)?,
        swap_memory: arguments.swap_memory.map(Memory::bytes),
        swap_file: arguments.swap_file.as_ref().map(SwapFile::config),
        memory_overcommit_ppm: arguments.overcommit.ppm(),
        max_wait: arguments.max_wait.duration(),
        churn: arguments.churn,
        peers: arguments.peers.clone(),
        metrics: place::metrics(
            arguments.node_metrics.as_deref(),
            arguments.server.metrics.metrics_token_file.as_deref(),
            &arguments.tls,
            Some(&folder),
        )?,
        ..NodeConfig::default()
    };
    place::serve_node(&arguments.gpus, Some(join), config, signals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_says_how_far_it_is() {
        assert_eq!(progress_line(50, 200), "50 of 200 rows copied (25%)");
        assert_eq!(progress_line(201, 200), "201 of 200 rows copied (100%)");
        assert_eq!(progress_line(0, 0), "0 of 0 rows copied (100%)");
    }
}
