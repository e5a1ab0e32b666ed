//! Arguments of `sluice checkpoint`.

use std::path::PathBuf;

use clap::Args;

use crate::quantity::Period;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sluice checkpoint 7 saved            a copy of the running program of lease 7, which continues
  sluice checkpoint 7 saved            the same folder again: only what has changed is written
  sluice checkpoint 7 saved --every 10min
                                       the same every ten minutes, until the lease ends
  sluice checkpoint 7 saved --every 10min --if-lost gpu2:7583/4be1…
                                       and an idle program continues there, should its node end
  sluice checkpoint 7 saved --key-file ~/saved.key
                                       encrypted, with a key that is made where there is none
  sluice checkpoint 7 saved --stop     it leaves its GPU, and waits for `sluice restore saved`

A program that was stopped with its checkpoint is restored from it, and so is one that has made no CUDA \
call since, should its node end (--if-lost, or `sluice restore --former-node-is-gone`). For others the \
folder is ready: a later --stop copies what has changed since, and is quick.

What cannot move to another GPU (`sluice migrate`) cannot be in a checkpoint either; the refusal says \
what keeps it. A checkpoint that fails leaves the program, and the former checkpoint in the folder, as \
they were. With --stop the folder may have the new one instead, without a stop.")]
pub(crate) struct CheckpointArgs {
    /// The lease, or one of its sessions, by its number (`sluice sessions`)
    #[arg(value_name = "LEASE")]
    pub(crate) number: u64,

    /// The folder for it, on this machine: a new or empty one, or that of a former checkpoint, of
    /// which what has not changed is kept
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,

    /// Take the program off its GPU once all is in the folder; its calls wait for `sluice restore`
    #[arg(long)]
    pub(crate) stop: bool,

    /// Make a checkpoint now and after each such time, until the lease ends or the command is
    /// interrupted; one that fails is said, and the next one comes at its time
    #[arg(long, value_name = "TIME", conflicts_with = "stop")]
    pub(crate) every: Option<Period>,

    /// With --every: should the node end, restore the program on this one. It continues there if it
    /// has made no CUDA call since its last checkpoint, as an idle one; run this on the program's
    /// machine, as its user
    #[arg(long, value_name = "HOST:PORT[/FINGERPRINT]", requires = "every")]
    pub(crate) if_lost: Option<String>,

    /// Encrypt what is in the folder (AES-256-GCM) with the key of this file, 64 hexadecimal
    /// digits; one is made where there is none. It has to be elsewhere than in the folder, and is
    /// needed for each further checkpoint and to restore
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,

    /// The node that has the lease, as `sluice node` prints it [default: $SLUICE_NODE]
    #[arg(long, value_name = "HOST:PORT[/FINGERPRINT]")]
    pub(crate) node: Option<String>,
}
