//! `sluice-server`: the control plane as a program. `sluice server` and `sluice up` start it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use sluice_server::{Config, Database, Tls};

/// The control plane: tenants, quotas, the queue, leases, bills
#[derive(Debug, Parser)]
#[command(name = "sluice-server", version, max_term_width = 100)]
struct Arguments {
    /// Where to listen: HOST:PORT (port 0 takes a free one). Beyond this machine that takes TLS
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7580")]
    listen: String,

    /// Its certificate and what leads from it to its authority, a PEM file: it speaks TLS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// The key of --tls-cert, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Speak plain text, also beyond loopback: whoever sees the network sees tokens
    #[arg(long, conflicts_with = "tls_cert")]
    plain_text: bool,

    /// URL at which other servers of the same database reach this one, where that is not the address it listens on
    #[arg(long, value_name = "URL")]
    advertise: Option<String>,

    /// The folder that holds the database, the key and the first tokens
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,

    /// Where everything is kept: postgres://USER@HOST/NAME (also in SLUICE_DATABASE). A file of SQLite in the data folder unless said
    #[arg(long, value_name = "URL", value_parser = Database::parse)]
    database: Option<Database>,

    /// Requests that one token may make in a second, five times as many at once; 0 for any number
    #[arg(long, value_name = "COUNT", default_value_t = 500)]
    requests_per_second: u32,

    /// Requests without a valid token that one address may make in a second, five times as many at once; 0 for any number
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    failures_per_second: u32,

    /// Seconds that a preempted program may go on
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    grace: u32,

    /// Seconds for which a GPU that was too hot has to be well before it is used again
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    gpu_quiet: u32,

    /// Use of late lowers a tenant's part of what others leave, and use of so many seconds ago counts half; 0 to count none of it
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    use_half_life: u64,

    /// Stop when standard input ends
    #[arg(long, hide = true)]
    until_stdin_ends: bool,

    /// Copy the database and the key into this new folder and exit; the server may go on meanwhile
    #[arg(long, value_name = "FOLDER", conflicts_with = "restore")]
    backup: Option<PathBuf>,

    /// Copy a backup into the data folder and the database, which must be empty, and exit
    #[arg(long, value_name = "FOLDER")]
    restore: Option<PathBuf>,

    /// Print the OpenAPI document of the API and exit
    #[arg(long)]
    openapi: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.openapi {
        print!("{}", sluice_server::document());
        return ExitCode::SUCCESS;
    }
    let Some(folder) = arguments.data.or_else(sluice_api::client::data_folder) else {
        eprintln!("sluice-server: no data folder: say --data FOLDER (neither XDG_DATA_HOME nor HOME is set)");
        return ExitCode::FAILURE;
    };
    let database = match arguments.database.map_or_else(database_of_environment, |named| Ok(Some(named))) {
        Ok(database) => database,
        Err(error) => {
            eprintln!("sluice-server: SLUICE_DATABASE: {error}");
            return ExitCode::FAILURE;
        }
    };
    let copied = match (&arguments.backup, &arguments.restore) {
        (Some(to), _) => Some(sluice_server::back_up(&folder, database.as_ref(), to)),
        (None, Some(from)) => Some(sluice_server::restore(from, &folder, database.as_ref())),
        (None, None) => None,
    };
    if let Some(copied) = copied {
        return match copied {
            Ok(rows) => {
                eprintln!("sluice-server: {rows} rows copied");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("sluice-server: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let tls = match arguments.tls_cert.zip(arguments.tls_key) {
        Some((certificate, key)) => Tls::Certificate { certificate, key },
        None if arguments.plain_text => Tls::None,
        None => Tls::OnLoopbackNone,
    };
    let config = Config {
        listen: arguments.listen,
        tls,
        folder,
        database,
        advertise: arguments.advertise,
        requests_per_s: arguments.requests_per_second,
        failures_per_s: arguments.failures_per_second,
        grace_ms: u64::from(arguments.grace) * 1000,
        quiet_ms: u64::from(arguments.gpu_quiet) * 1000,
        half_life_ms: (arguments.use_half_life > 0).then(|| arguments.use_half_life.saturating_mul(1000)),
        until_stdin_ends: arguments.until_stdin_ends,
    };
    match sluice_server::serve(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sluice-server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn database_of_environment() -> Result<Option<Database>, String> {
    match std::env::var("SLUICE_DATABASE") {
        Ok(text) if !text.is_empty() => Database::parse(&text).map(Some),
        _ => Ok(None),
    }
}
