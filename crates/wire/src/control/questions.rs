//! Questions about a node: its GPUs, sessions, usage and processes, and echoes.

use super::DeviceSnapshot;
use crate::codec::message;
use crate::handshake::LeaseToken;

message! {
    pub struct StatusRequest {}
}

message! {
    pub struct Status {
        gpus: Vec<GpuStatus>,
        sessions: Vec<SessionStatus>,
    }
}

message! {
    pub struct GpuStatus {
        index: u32,
        name: String,
        uuid: [u8; 16],
        memory: u64,
        memory_leased: u64,
        memory_used: u64,
        share_leased_ppm: u32,
        sessions: u32,
        is_software: bool,
        driver_version: u32,
        compute_capability: (i32, i32),
        /// Part of the last second in which it worked, in millionths.
        busy_ppm: u32,
    }
}

message! {
    pub struct SessionStatus {
        session: u64,
        lease: u64,
        name: String,
        /// Of the client, where that means something: process id and address.
        process: u32,
        peer: String,
        gpu: u32,
        share_ppm: u32,
        /// `SHARE_WHOLE_PPM` for no limit.
        limit_ppm: u32,
        memory: u64,
        memory_used: u64,
        /// The part of `memory_used` that has left the GPU.
        memory_swapped: u64,
        /// The part of `memory_swapped` that is in a file instead of in host memory.
        memory_in_file: u64,
        /// The part of `memory_used` that cannot leave the GPU.
        memory_pinned: u64,
        /// What is to be said of where its memory is; nothing where it is on the GPU.
        memory_state: String,
        /// How often its memory has left the GPUs, and how long that and the ways back have taken,
        /// in microseconds.
        memory_moves: u64,
        memory_moving_us: u64,
        kernels: u64,
        bytes_in: u64,
        bytes_out: u64,
        /// GPU time used so far, in microseconds, as the meter `used` of bills counts it. Where a
        /// session is listed once for each GPU, the time for which it had that GPU.
        busy_us: u64,
        age_ms: u64,
        /// Its client's connection is gone, and the client is waited for.
        parted: bool,
        /// It gets no GPU time until it is resumed.
        suspended: bool,
        /// What keeps it from moving to another GPU; nothing where it can, or where that is not
        /// known.
        unmovable: Vec<String>,
    }
}

message! {
    /// Asks for the devices of a lease without opening a session, as NVML does.
    pub struct DevicesRequest { token: LeaseToken }
}

message! {
    pub struct Devices {
        devices: Vec<DeviceSnapshot>,
        sessions: Vec<SessionStatus>,
    }
}

message! {
    /// Asks what the lease of this connection has used so far.
    pub struct UsageRequest {}
}

message! {
    /// What all sessions of a lease have used, those that have ended included.
    pub struct Usage {
        age_ms: u64,
        sessions: u64,
        kernels: u64,
        bytes_in: u64,
        bytes_out: u64,
        /// GPU time used, in microseconds, as the meter `used` of bills counts it.
        busy_us: u64,
        /// The most memory that its sessions had together, in bytes.
        memory_peak: u64,
    }
}

message! {
    /// Asks what each process has used under the lease of this connection. Answered by `Processes`.
    pub struct ProcessesRequest {}
}

message! {
    pub struct Processes {
        /// In the order in which their sessions began.
        processes: Vec<ProcessUsage>,
        /// Sessions that ended and are not listed, since the node keeps a limited number of them.
        omitted: u64,
    }
}

message! {
    /// What one session of a lease has used, which is one process of the program.
    pub struct ProcessUsage {
        session: u64,
        /// The process id, where the process sees it so.
        process: u32,
        /// From the session's beginning to its end, or to now.
        age_ms: u64,
        kernels: u64,
        bytes_in: u64,
        bytes_out: u64,
        /// GPU time in microseconds.
        busy_us: u64,
        /// The `CUresult` of the fault that ended the work of the session; 0 without a fault.
        fault: i32,
        /// How the session ended, if the node has ended it or its worker has crashed.
        end: String,
    }
}

message! {
    /// Asks for plain transfers under a lease, which the transfers of CUDA calls are compared with.
    /// After `EchoReady`, and outside of frames, the asker sends `take` bytes and then gets `give`
    /// bytes, `rounds` times.
    pub struct EchoRequest {
        token: LeaseToken,
        /// 1 to `ECHO_BYTES_MAX`.
        take: u64,
        /// At most `ECHO_BYTES_MAX`.
        give: u64,
        rounds: u32,
    }
}

/// Most bytes of a round, each way.
pub const ECHO_BYTES_MAX: u64 = 256 << 20;

message! {
    pub struct EchoReady {}
}
