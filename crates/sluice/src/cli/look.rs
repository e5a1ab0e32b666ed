//! Commands that look at nodes and their GPUs: `devices`, `sessions`, `top`, `smi`.

use clap::{Args, Subcommand, ValueEnum};

use super::GpuChoice;
#[cfg(feature = "full")]
use crate::quantity::Period;

#[derive(Debug, Args)]
pub(crate) struct QueryArgs {
    /// The node to ask, as `sluice node` prints it [default: $SLUICE_NODE]
    #[arg(long, value_name = "HOST:PORT[/FINGERPRINT]")]
    pub(crate) node: Option<String>,

    /// The server to ask [default: $SLUICE_SERVER, else that of `sluice login`]
    #[arg(long, value_name = "URL", conflicts_with = "node")]
    pub(crate) server: Option<String>,

    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Output,
}

#[cfg(feature = "full")]
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// The node to watch, as `sluice node` prints it [default: $SLUICE_NODE]
    #[arg(long, value_name = "HOST:PORT[/FINGERPRINT]")]
    pub(crate) node: Option<String>,

    /// The server to watch [default: $SLUICE_SERVER, else that of `sluice login`]
    #[arg(long, value_name = "URL", conflicts_with = "node")]
    pub(crate) server: Option<String>,

    /// How often to ask, such as 1s or 500ms
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(crate) interval: Period,
}

/// Where a command that uses a GPU by itself gets one.
#[derive(Debug, Args)]
pub(crate) struct PlaceArgs {
    /// The node to use, as `sluice node` prints it [default: $SLUICE_NODE, else a private node on
    /// this machine]
    #[arg(long, value_name = "HOST:PORT[/FINGERPRINT]")]
    pub(crate) node: Option<String>,

    /// GPUs of the private node, as for `sluice run`
    #[arg(long, value_name = "GPUS", conflicts_with = "node")]
    pub(crate) gpus: Option<GpuChoice>,

    /// The server to ask for a lease [default: $SLUICE_SERVER, else that of `sluice login`]
    #[arg(long, value_name = "URL", conflicts_with_all = ["node", "gpus"])]
    pub(crate) server: Option<String>,

    /// For whom, with a server [default: the token's tenant]
    #[arg(long, value_name = "PATH", conflicts_with_all = ["node", "gpus"])]
    pub(crate) tenant: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SmiArgs {
    /// One line for each GPU
    #[arg(short = 'L', long = "list-gpus")]
    pub(crate) list_gpus: bool,

    /// All that is known of each GPU
    #[arg(short = 'q', long = "query")]
    pub(crate) query: bool,

    /// Only these parts of it, such as MEMORY,UTILIZATION
    #[arg(
        short = 'd',
        long,
        value_name = "PARTS",
        requires = "query",
        value_enum,
        value_delimiter = ',',
        ignore_case = true
    )]
    pub(crate) display: Vec<SmiPart>,

    /// Print the query's result as XML
    #[arg(short = 'x', long = "xml-format", requires = "query")]
    pub(crate) xml: bool,

    /// Comma-separated properties of GPUs, such as name,memory.total,utilization.gpu
    #[arg(long, value_name = "PROPERTIES", group = "properties")]
    pub(crate) query_gpu: Option<String>,

    /// Comma-separated properties of processes, such as pid,process_name,used_memory
    #[arg(long, value_name = "PROPERTIES", group = "properties")]
    pub(crate) query_compute_apps: Option<String>,

    /// Format: csv, optionally with noheader and nounits
    #[arg(long, value_name = "FORMAT", requires = "properties")]
    pub(crate) format: Option<String>,

    /// List the properties of GPUs
    #[arg(long)]
    pub(crate) help_query_gpu: bool,

    /// List the properties of processes
    #[arg(long)]
    pub(crate) help_query_compute_apps: bool,

    /// Only these GPUs: indices, UUIDs or PCI bus ids, separated by commas
    #[arg(short = 'i', long = "id", value_name = "IDS")]
    pub(crate) id: Option<String>,

    /// Ask again SECONDS after each answer, until interrupted
    #[arg(short = 'l', long = "loop", value_name = "SECONDS", num_args = 0..=1, default_missing_value = "5",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) repeat: Option<u64>,

    #[command(subcommand)]
    pub(crate) command: Option<SmiCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SmiCommand {
    /// How the GPUs are connected
    Topo {
        /// As a matrix
        #[arg(short = 'm', long, required = true)]
        matrix: bool,
    },
}

/// A part of what `nvidia-smi -q` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SmiPart {
    Memory,
    Utilization,
    Compute,
    Pids,
    Temperature,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Table,
    Json,
}
