//! Why a lease is refused, and how its messages write amounts.

/// Why a lease is refused; the text is what the user reads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("a share is more than 0 and at most 1 (0.25 is a quarter of a GPU)")]
    Share,
    #[error("a limit of compute is not below the share ({share}), and this one is {limit}")]
    Limit { share: String, limit: String },
    #[error("a lease has 1 to {0} GPUs here, since this node has no more")]
    Count(usize),
    #[error("{asked} of memory are more than any GPU of this node has; the largest has {largest}")]
    LargerThanAnyGpu { asked: String, largest: String },
    #[error(
        "no {count} with {share} of the compute and {memory} of memory free; free now: {free}. Ask for less (-p, \
         --memory) or wait for a session to end (`sluice sessions` lists them)"
    )]
    NothingFree { count: String, share: String, memory: String, free: String },
    #[error(
        "GPU {gpu} has no room for that: beside the other leases there, this one can have up to {share} of the compute and \
         {memory} of memory"
    )]
    NoRoom { gpu: usize, share: String, memory: String },
    #[error(
        "its programs hold {held} of memory on GPU {gpu}, {reserved} of it set aside for their next allocations; a lease \
         cannot have less than that. Free memory in the program first, or ask for at least {held}"
    )]
    Held { gpu: usize, held: String, reserved: String },
    #[error(
        "{share} of the compute of GPU {gpu} are free now, and the lease had {asked} when it was suspended: end or suspend \
         another one, or give this one less (`sluice resize`)"
    )]
    NotResumed { gpu: usize, share: String, asked: String },
    #[error(
        "{free} of the memory of GPU {gpu} are free now, and the lease needs {asked}: end or suspend another one, or give this one \
         less (`sluice resize --memory`)"
    )]
    NoMemoryToResume { gpu: usize, free: String, asked: String },
    #[error(
        "a clone needs {needs} of memory, and {left} of the {memory} of lease {lease} are left: give it {needed} \
         (`sluice resize {lease} --memory`, or `sluice run --memory`)"
    )]
    NoMemoryForClone { lease: u64, needs: String, left: String, memory: String, needed: String },
    #[error("its program is moving to another GPU: try again once it has")]
    Moving,
    #[error("there is no such lease any more")]
    Gone,
}

/// `8.0 GiB`, as the messages of a node write sizes.
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

pub(super) fn percent_text(ppm: u64) -> String {
    let percent = ppm as f64 / 10_000.0;
    if percent.fract() == 0.0 { format!("{percent:.0} %") } else { format!("{percent:.2} %") }
}
