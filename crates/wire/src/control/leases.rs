//! Leases: asked for, claimed, resized, suspended, ended.

use super::DeviceSnapshot;
use crate::codec::{choice, message};
use crate::handshake::{LeaseToken, Once};

message! {
    /// Asks for a lease. The connection on which it was granted holds it: the lease ends by
    /// `LeaseEnd`, or when that connection is gone and no client comes back for it by
    /// `LeaseResume`. Asked for again, it is the same lease.
    pub struct LeaseRequest {
        once: Once,
        /// Millionths of each GPU's compute, above 0 up to `SHARE_WHOLE_PPM`.
        share_ppm: u32,
        /// Bytes on each GPU; 0 for the same part of its memory as of its compute.
        memory: u64,
        gpus: u32,
        /// Millionths of each GPU's compute that it gets at most, also while the GPU would be idle
        /// otherwise: not below `share_ppm`, and `SHARE_WHOLE_PPM` for no limit.
        limit_ppm: u32,
        /// The longest a kernel may run, in milliseconds; 0 for no limit.
        kernel_timeout_ms: u32,
        /// The program, for people to read.
        name: String,
    }
}

message! {
    /// Claims a lease that a server has granted on this node. Held, ended and asked for again as
    /// one that was asked for here.
    pub struct LeaseClaim {
        once: Once,
        /// What the server signed.
        grant: String,
        /// The longest a kernel may run, in milliseconds; 0 for no limit.
        kernel_timeout_ms: u32,
        /// The program, for people to read.
        name: String,
    }
}

message! {
    pub struct LeaseGranted {
        lease: u64,
        token: LeaseToken,
        devices: Vec<DeviceSnapshot>,
        /// How long lease and sessions outlive a cut, in milliseconds; 0 if they do not.
        linger_ms: u32,
        /// Where sessions of the lease may begin as well, without the network: for a holder on the
        /// node's machine, a socket as `unix:` has it.
        nearby: Option<String>,
    }
}

message! {
    /// Takes a lease over whose connection was cut. Answered by `LeaseResumed`, or `Refused`.
    pub struct LeaseResume { token: LeaseToken }
}

message! {
    pub struct LeaseResumed {}
}

message! {
    /// The holder is done. No answer; the node closes the connection once everything is free.
    pub struct LeaseEnd {}
}

message! {
    /// From the node to the holder of a lease, unasked: the connection of this process is cut. The
    /// holder answers by `ProcessEnded` once the process has ended; until then the session may be
    /// resumed.
    pub struct ProcessWatch { process: u32 }
}

message! {
    pub struct ProcessEnded { process: u32 }
}

message! {
    pub struct LeaseRefused {
        reason: String,
        /// What could have been granted instead, per GPU.
        free: Vec<GpuFree>,
    }
}

message! {
    /// Changes what a lease has while its programs run. Answered by `LeaseResized`, or by
    /// `Refused`, and then the lease is as it was.
    pub struct LeaseResize {
        lease: LeaseName,
        /// The new share; as it was without.
        share_ppm: Option<u32>,
        /// Bytes on each GPU; as it was without.
        memory: Option<u64>,
        /// The new limit of compute, `SHARE_WHOLE_PPM` for none, 0 for one that equals the share.
        /// Without, a limit that equals the share continues doing so, and another one stays.
        limit_ppm: Option<u32>,
    }
}

choice! {
    /// Which lease is meant.
    pub enum LeaseName {
        /// The one that this token opens: its owner asks.
        Own(LeaseToken) = 0,
        /// The lease of this number, or that of the session of this number: every client that may
        /// ask for leases may ask for it.
        Numbered(u64) = 1,
    }
}

message! {
    /// Changes what a lease of a server has, as a later grant of it says. Answered as
    /// `LeaseResize`. The node receives the grant from its server as well; a client that has it can
    /// be faster.
    pub struct LeaseRegrant { grant: String }
}

message! {
    /// Gives the sessions of a lease no GPU time until they are resumed, or lets them have it
    /// again. Their memory leaves the GPUs meanwhile, as far as it can, and calls of their programs
    /// wait. The number of a session means that session alone. Answered by `Suspended`, or by
    /// `Refused`.
    pub struct Suspend { lease: LeaseName, suspended: bool }
}

message! {
    /// The sessions that are suspended now, or that have been resumed.
    pub struct Suspended {
        sessions: Vec<u64>,
        /// Bytes of their memory that are in host memory now.
        swapped: u64,
        /// What the user should know: what stays on the GPUs, and why.
        notes: Vec<String>,
    }
}

message! {
    /// What a lease has on each of its GPUs from now on.
    pub struct LeaseResized { lease: u64, share_ppm: u32, limit_ppm: u32, memory: u64 }
}

message! {
    pub struct GpuFree { name: String, share_ppm: u32, memory: u64 }
}
