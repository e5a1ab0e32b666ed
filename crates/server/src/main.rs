//! A server alone, for this crate's tests and measurements and for its OpenAPI document: it ends
//! with its standard input, speaks plain text, and has no node. Users have `sluice server` and
//! `sluice up`.

use std::io;
use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use sluice_server::{Config, Database, MailConfig, Running};

#[derive(Debug, Parser)]
struct Arguments {
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: String,

    #[arg(long, required_unless_present = "openapi")]
    data: Option<PathBuf>,

    #[arg(long, default_value_t = 500)]
    requests_per_second: u32,

    /// As of `sluice server`, as is the next
    #[arg(long, default_value_t = sluice_server::GRACE_S)]
    grace: u32,

    #[arg(long, default_value_t = sluice_server::GPU_QUIET_S)]
    gpu_quiet: u32,

    /// As of `sluice server`
    #[arg(long, value_name = "NETWORK")]
    webhook_allow: Vec<sluice_server::IpNet>,

    /// As of `sluice server`, as are the next two
    #[arg(long, requires = "mail_from")]
    mail_server: Option<String>,

    #[arg(long)]
    mail_from: Option<String>,

    #[arg(long)]
    mail_domain: Vec<String>,

    /// As of `sluice server`, in milliseconds
    #[arg(long)]
    node_idle_ms: Option<u64>,

    /// As of `sluice server`
    #[arg(long, default_value = "text")]
    log_format: sluice_log::Format,

    /// As `sluice backup` does
    #[arg(long)]
    backup: Option<PathBuf>,

    /// As `sluice restore` does
    #[arg(long)]
    restore: Option<PathBuf>,

    /// Print the OpenAPI document of the API
    #[arg(long)]
    openapi: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let Some(folder) = arguments.data.filter(|_| !arguments.openapi) else {
        print!("{}", sluice_server::document());
        return Ok(());
    };
    let database = Database::of_environment().map_err(anyhow::Error::msg)?;
    if let Some(to) = &arguments.backup {
        sluice_server::back_up(&folder, database.as_ref(), to, &mut |_, _| {})?;
        return Ok(());
    }
    if let Some(from) = &arguments.restore {
        sluice_server::restore(from, &folder, database.as_ref(), &mut |_, _| {})?;
        return Ok(());
    }
    sluice_log::start(arguments.log_format)?;
    let server = Running::start(&Config {
        listen: arguments.listen,
        tls: None,
        folder,
        database,
        advertise: None,
        requests_per_s: arguments.requests_per_second,
        failures_per_s: 5,
        grace_ms: u64::from(arguments.grace) * 1000,
        quiet_ms: u64::from(arguments.gpu_quiet) * 1000,
        half_life_ms: None,
        node_idle_ms: arguments.node_idle_ms,
        webhook_allow: arguments.webhook_allow,
        mail: arguments.mail_server.zip(arguments.mail_from).map(|(server, from)| MailConfig {
            server,
            from,
            user: None,
            password_file: None,
            domains: arguments.mail_domain,
        }),
        otlp: None,
        metrics: None,
    })?;
    println!("listening on {}", server.url());
    io::copy(&mut io::stdin(), &mut io::sink())?;
    let stopped = server.stop();
    sluice_log::finish();
    Ok(stopped?)
}
