//! The `sluice` binary: runs programs on a share of a GPU, lends GPUs, and answers questions about
//! them.
//!
//! Data go to stdout, everything else to stderr. It is also the worker that a node starts, and,
//! under the name `nvidia-smi`, the tool that programs under a lease find by that name. Under the
//! name `kubectl-sluice` it is a plugin of kubectl.

#[macro_use]
mod output;

// The command line, and what its commands share.
#[cfg(not(feature = "full"))]
mod absent;
mod cli;
#[cfg(feature = "full")]
mod manual;
mod moment;
mod place;
mod progress;
mod quantity;
mod table;

// `sluice run`: a lease, a program's surroundings, the program, what it used.
mod block_order;
mod child;
mod coverage;
mod hold;
mod lease;
mod ptxas;
mod report;
mod run;
mod sanitize;
mod surroundings;
mod tasks;
mod training;
mod used;

// Commands for running leases.
mod checkpoint;
mod key_file;
mod migrate;
mod resize;
mod restore;
mod suspend;

// Questions about nodes, and a node's own token.
mod node_token;
mod query;
mod smi;
#[cfg(feature = "full")]
mod top;

// All that a server is asked.
mod kubectl;
mod server;

// Tools.
mod bench;
mod doctor;
mod fit;
mod record;
mod replay;
#[cfg(feature = "full")]
mod simulate;

mod old_glibc;

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

#[cfg(not(feature = "full"))]
use crate::absent::{manual, simulate, top};
use crate::cli::{BenchCommand, Cli, Command, NodeArgs};

fn main() -> ExitCode {
    let called_as = std::env::args_os().next().unwrap_or_default();
    let program = Path::new(&called_as).file_name();
    if program == Some(OsStr::new(surroundings::NVIDIA_SMI)) {
        return answer(smi::run(&smi::Cli::parse().arguments));
    }
    if program == Some(OsStr::new(kubectl::PROGRAM)) {
        return answer(kubectl::run(&kubectl::Cli::parse()));
    }
    if ptxas::is_name(&called_as) {
        let arguments: Vec<_> = std::env::args_os().skip(1).collect();
        return ptxas::run(&called_as, &arguments);
    }
    let command = Cli::parse().command;
    if let Err(error) = log_format(&command).map_or(Ok(()), sluice_log::start) {
        complain(&error.to_string());
        return ExitCode::from(2);
    }
    let code = match command {
        Command::Run(arguments) => end(run::run(&arguments)),
        Command::Record(arguments) => end(record::run(arguments)),
        Command::Replay(arguments) => answer(replay::run(&arguments)),
        Command::Hold(arguments) => answer(hold::run(&arguments)),
        Command::Node(NodeArgs { command: Some(command), .. }) => answer(server::nodes::command(&command)),
        Command::Node(arguments) => answer(place::serve(&arguments)),
        Command::Worker { arguments } => place::worker(&arguments),
        Command::Gpus(arguments) => answer(query::gpus(&arguments)),
        Command::Sessions(arguments) => answer(query::sessions(&arguments)),
        Command::Top(arguments) => answer(top::run(&arguments)),
        Command::Resize(arguments) => answer(resize::run(&arguments)),
        Command::Suspend(arguments) => answer(suspend::run(&arguments, true)),
        Command::Resume(arguments) => answer(suspend::run(&arguments, false)),
        Command::Migrate(arguments) => answer(migrate::run(&arguments)),
        Command::Watch(arguments) => answer(training::watch(&arguments)),
        Command::Doctor(arguments) => answer(doctor::run(&arguments)),
        Command::Up(arguments) => answer(server::process::up(&arguments)),
        Command::Server(arguments) => answer(server::process::server(&arguments)),
        Command::Backup(arguments) => answer(server::process::backup(&arguments)),
        Command::Checkpoint(arguments) => answer(checkpoint::run(&arguments)),
        Command::Restore(arguments) => answer(restore::run(&arguments)),
        Command::Login(arguments) => answer(server::admin::log_in(&arguments)),
        Command::Logout => answer(server::admin::log_out()),
        Command::Whoami(arguments) => answer(server::admin::whoami(&arguments)),
        Command::Web(arguments) => answer(server::web::web(&arguments)),
        Command::Queue(arguments) => answer(server::lists::queue(&arguments)),
        Command::Tenants(arguments) => answer(server::lists::tenants(&arguments)),
        Command::Identity(command) => answer(server::admin::identity(&command)),
        Command::Tenant(command) => answer(server::admin::tenant(&command)),
        Command::Pool(command) => answer(server::admin::pool(&command)),
        Command::Nodes(arguments) => answer(server::nodes::list(&arguments)),
        Command::Servers(arguments) => answer(server::servers::list(&arguments)),
        Command::Pools(arguments) => answer(server::lists::pools(&arguments)),
        Command::Apply(arguments) => answer(server::admin::apply(&arguments)),
        Command::Bill(arguments) => answer(server::bills::bill(&arguments)),
        Command::Usage(arguments) => answer(server::usage::usage(&arguments)),
        Command::Fit(arguments) => answer(fit::fit(&arguments)),
        Command::Plan(arguments) => answer(server::plan::pools(&arguments)),
        Command::Iq(arguments) => answer(server::iq::iq(&arguments)),
        Command::Invoice(command) => answer(server::invoices::invoice(&command)),
        Command::Report(arguments) => answer(server::reports::report(&arguments)),
        Command::Correct(arguments) => answer(server::bills::correct(&arguments)),
        Command::Reconcile(arguments) => answer(server::reconcile::reconcile(&arguments)),
        Command::Webhook(command) => answer(server::webhooks::webhook(&command)),
        Command::Token(command) => answer(server::admin::token(&command)),
        Command::Lease(command) => answer(server::admin::lease(&command)),
        Command::Gpu(command) => answer(server::admin::gpu(&command)),
        Command::Audit(command) => answer(server::admin::audit(&command)),
        Command::Smi(arguments) => answer(smi::run(&arguments)),
        Command::Simulate(arguments) => answer(simulate::run(&arguments)),
        Command::Bench(BenchCommand::Remoting(arguments)) => answer(bench::remoting(&arguments)),
        Command::BenchClient(arguments) => answer(bench::client(&arguments)),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "sluice", &mut output::Stdout);
            ExitCode::SUCCESS
        }
        Command::Man { folder, .. } => answer(manual::write(folder.as_deref())),
    };
    sluice_log::finish();
    code
}

/// What is logged in this process: a worker has no log, its lines are in that of its node.
fn log_format(command: &Command) -> Option<sluice_log::Format> {
    match command {
        Command::Worker { .. } => None,
        Command::Node(NodeArgs { command: None, log, .. }) => Some(log.log_format),
        #[cfg(feature = "full")]
        Command::Server(arguments) => Some(arguments.log.log_format),
        #[cfg(feature = "full")]
        Command::Up(arguments) => Some(arguments.log.log_format),
        _ => Some(sluice_log::Format::Messages),
    }
}

/// Ends the process with the very code of its program; what is left has been dropped.
fn end(result: Result<i32, child::NotStarted>) -> ! {
    match result {
        Ok(code) => std::process::exit(code),
        Err(failure) => {
            complain(&failure.message);
            std::process::exit(failure.exit_code)
        }
    }
}

fn answer(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        complain(&output::with_causes(&error));
        ExitCode::FAILURE
    })
}

fn complain(message: &str) {
    eprintln!("sluice: {message}");
}
