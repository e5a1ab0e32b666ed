//! What is said outside sessions: leases, and questions about a node.

use sluice_cuda::{CUdevice_attribute, CUlimit, CUuuid, Presence};

use crate::{
    codec::{Decode, Encode, Reader, choice, decode, message},
    error::WireError,
    handshake::{LeaseToken, Once, SessionSecret},
};

/// A whole GPU, in the unit of shares: millionths.
pub const SHARE_WHOLE_PPM: u32 = 1_000_000;

message! {
    /// Asks for a lease. The connection on which it was granted holds it: the lease ends by
    /// `LeaseEnd`, or when that connection is gone and nobody comes back for it by `LeaseResume`.
    /// Asked for again, it is the same lease.
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
        /// The lease of this number, or that of the session of this number: everybody may ask who
        /// may ask for leases.
        Numbered(u64) = 1,
    }
}

message! {
    /// Changes what a lease of a server has, as a later grant of it says. Answered as
    /// `LeaseResize`. The node hears of the grant from its server as well; whoever has it can be
    /// faster.
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
    /// Moves the session of a lease to another GPU, where it continues. The number of a session
    /// means its lease. Answered by `Migrated`, or by `Refused`: then it continues where it was.
    pub struct Migrate {
        lease: LeaseName,
        /// Where GPUs of that node are counted from 0; `None` for any that has room.
        gpu: Option<u32>,
        /// The endpoint of another node, as the session's client reaches it; `None` for this node.
        node: Option<String>,
        /// Nothing moves: the answer is `MovePlanned`.
        dry_run: bool,
    }
}

message! {
    /// What a move would do.
    pub struct MovePlanned {
        session: u64,
        /// Bytes of device memory that would be copied.
        bytes: u64,
        /// What keeps the session from moving now; nothing where it can.
        reasons: Vec<String>,
    }
}

message! {
    /// From a node to another: asks it to take over a lease with its one session. Answered by
    /// `MoveAccepted`, or by `Refused`. What the session consists of follows, as `MovePiece`s.
    pub struct MoveOffer {
        /// The GPU that it is to have; `None` for any that has room.
        gpu: Option<u32>,
        lease: Box<MovedLease>,
        session: MovedSession,
        /// How long the session's client tries to come back, in milliseconds.
        linger_ms: u64,
        /// Where both nodes lend through a server: its grant of the lease to the other node.
        grant: Option<String>,
    }
}

message! {
    /// A lease as another node has it from now on.
    pub struct MovedLease {
        token: LeaseToken,
        /// How its holder asked for it.
        once: Once,
        share_ppm: u32,
        limit_ppm: u32,
        /// Bytes.
        memory: u64,
        kernel_timeout_ms: u64,
        name: String,
        /// The GPUs that its programs take theirs for.
        shown: Vec<DeviceSnapshot>,
        used: Usage,
    }
}

message! {
    /// A session as another node has it from now on.
    pub struct MovedSession {
        secret: SessionSecret,
        /// How its client asked for it.
        once: Once,
        /// The client's process, as the holder of the lease knows it.
        process: u32,
        process_space: u64,
        /// Where the client connects from, for people to read.
        peer: String,
    }
}

message! {
    /// Room for the session is held. The node has given it this number.
    pub struct MoveAccepted { session: u64, gpu: u32 }
}

/// The next bytes of what a session consists of, in the form of [`crate::migration`]. They are
/// copied as a whole: bytes one by one would take longer than the link.
#[derive(Clone, Debug, PartialEq)]
pub struct MovePiece {
    pub bytes: Vec<u8>,
}

impl Encode for MovePiece {
    fn encode(&self, out: &mut Vec<u8>) {
        self.bytes.as_slice().encode(out);
    }
}

impl Decode<'_> for MovePiece {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(MovePiece { bytes: <&[u8]>::decode(reader)?.to_vec() })
    }
}

#[cfg(any(test, feature = "sample"))]
impl<'s> crate::sample::Sample<'s> for MovePiece {
    fn sample(source: &mut crate::sample::Source<'s>) -> Self {
        MovePiece { bytes: crate::sample::Sample::sample(source) }
    }
}

message! {
    /// The session is there in full, with this many bytes of device memory.
    pub struct MoveArrived { bytes: u64 }
}

message! {
    /// Whether the session continues on the node that was offered it. Only the node that offers it
    /// decides: without this message, the session's client decides, by where it was sent.
    pub struct MoveDecided {
        moves: bool,
        /// What the lease has used until then.
        used: Option<Usage>,
        /// Until when the usage records go of the node that offers it, in milliseconds since 1970;
        /// `None` where there is no server.
        recorded_until_ms: Option<u64>,
    }
}

message! {
    /// The answer to a question about a lease that has moved to another node, which is to be asked
    /// instead.
    pub struct LeaseMoved { node: String }
}

message! {
    /// The answer to a client whose session, or whose lease, has moved to another node: it connects
    /// there, and resumes the session of this number if it has one.
    pub struct SessionMoved { node: String, session: u64 }
}

message! {
    /// Asks for a copy of the session of a lease, as [`crate::checkpoint`] has it. Answered by
    /// `CheckpointBegun`, or by `Refused`; `MovePiece`s of both sides follow, which the asking side
    /// ends by `CheckpointDecided`. A `Refused` among them ends it as well: the session continues.
    pub struct Checkpoint {
        lease: LeaseName,
    }
}

message! {
    /// A copy of a session begins.
    pub struct CheckpointBegun {
        /// The session's number.
        session: u64,
        /// With what another node takes the lease and the session over.
        offer: MoveOffer,
        /// Bytes of device memory, about.
        bytes: u64,
    }
}

message! {
    /// The copy is whole, and the session continues or leaves the node. Answered by `Checkpointed`,
    /// or by `Refused` where it has not left.
    pub struct CheckpointDecided { stops: bool }
}

message! {
    /// What became of a session that was copied.
    pub struct Checkpointed {
        /// It has left the node.
        stopped: bool,
        /// What its lease has used so far.
        used: Usage,
        /// How long it could not run, in microseconds.
        stall_us: u64,
    }
}

message! {
    /// The answer to a client whose session, or to the holder whose lease, is in a checkpoint: it
    /// asks again until it is sent on.
    pub struct LeaseStored {}
}

message! {
    /// Asks what has become of a lease. Answered by `LeaseMoved`, `LeaseStored`, `LeaseHere`, or by
    /// `Refused` if the node knows nothing of it.
    pub struct LeaseQuestion { token: LeaseToken }
}

message! {
    /// The lease is on this node.
    pub struct LeaseHere {}
}

message! {
    /// Says where a lease is that was restored from a checkpoint, for its client and its holder to
    /// be sent there. Answered by the same message, or by `Refused`.
    pub struct LeaseRestored {
        token: LeaseToken,
        secret: SessionSecret,
        /// The session's number on the node that gets this message.
        session: u64,
        /// The endpoint of the node that has it now, and its number there.
        node: String,
        there: u64,
    }
}

message! {
    /// A session runs on another GPU.
    pub struct Migrated {
        session: u64,
        gpu: u32,
        /// Bytes of device memory that were copied.
        bytes: u64,
        /// How long it could not run, in microseconds.
        stall_us: u64,
    }
}

message! {
    /// What a lease has on each of its GPUs from now on.
    pub struct LeaseResized { lease: u64, share_ppm: u32, limit_ppm: u32, memory: u64 }
}

message! {
    pub struct GpuFree { name: String, share_ppm: u32, memory: u64 }
}

message! {
    /// What is fixed about a leased device while the lease lasts. Clients answer most questions
    /// from it.
    pub struct DeviceSnapshot {
        name: String,
        uuid: [u8; 16],
        /// Of the lease, in bytes.
        memory: u64,
        /// As `cuDriverGetVersion` gives it.
        driver_version: u32,
        attributes: Vec<(CUdevice_attribute, i32)>,
        limits: Vec<(CUlimit, u64)>,
        /// Lowest and highest, as `cuCtxGetStreamPriorityRange` gives them.
        stream_priorities: (i32, i32),
        /// Whether it runs PTX only.
        is_software: bool,
        /// The driver's functions.
        functions: Presence,
        /// Granularity of memory, in bytes; what a session commits and takes back is a multiple of
        /// it.
        chunk: u64,
        /// Which builds of Sluice and of its driver the node runs: where that is the same, so are
        /// all answers that follow from the device alone. 0 where that is not known.
        build: u64,
    }
}

/// Makes the UUIDs of one program's devices different: software devices of several nodes may have
/// the same. All who count the devices in the same order get the same.
pub fn tell_apart(uuids: &mut [[u8; 16]]) {
    for index in 1..uuids.len() {
        let (before, rest) = uuids.split_at_mut(index);
        while before.contains(&rest[0]) {
            rest[0][15] = rest[0][15].wrapping_add(1);
            if rest[0][15] == 0 {
                rest[0][14] = rest[0][14].wrapping_add(1);
            }
        }
    }
}

impl DeviceSnapshot {
    pub fn uuid(&self) -> CUuuid {
        CUuuid { bytes: self.uuid }
    }

    pub fn attribute(&self, attribute: CUdevice_attribute) -> Option<i32> {
        self.attributes.iter().find(|(id, _)| *id == attribute).map(|(_, value)| *value)
    }

    /// Major and minor.
    pub fn compute_capability(&self) -> (i32, i32) {
        let of = |attribute| self.attribute(attribute).unwrap_or(0);
        (of(CUdevice_attribute::COMPUTE_CAPABILITY_MAJOR), of(CUdevice_attribute::COMPUTE_CAPABILITY_MINOR))
    }
}

impl Encode for Presence {
    fn encode(&self, out: &mut Vec<u8>) {
        self.words().to_vec().encode(out);
    }
}

impl Decode<'_> for Presence {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let words = Vec::<u64>::decode(reader)?;
        Presence::from_words(&words)
            .ok_or(WireError::Value { what: "a set's length", value: words.len() as u64 })
    }
}

message! {
    /// Over a Unix socket a client may ask first to continue through shared memory.
    pub struct ShareMemory {}
}

message! {
    /// The worker's answer. A descriptor of the memory comes with it if it is offered; else all
    /// stays as it is.
    pub struct SharedMemory { offered: bool }
}

message! {
    /// The client's word on what was offered: if it has the memory, the next byte of either side
    /// comes through it.
    pub struct SharedMemoryTaken { taken: bool }
}

message! {
    /// The client's first frame in a session: where device addresses could be.
    pub struct SessionOpen {
        /// Ranges that the client has reserved on its side, first choice first: address and size in
        /// bytes.
        ranges: Vec<(u64, u64)>,
        /// Whether it would send commands as what changed since earlier ones; see `sequences`.
        recognises: bool,
        /// Whether large pushes may come packed where the link is slow; see `pack`.
        unpacks: bool,
    }
}

message! {
    /// The worker's first frame in a session.
    pub struct SessionOpened {
        session: u64,
        /// The range in which the client mints device addresses, if one of its offers fitted.
        range: Option<(u64, u64)>,
        /// In the order of the lease.
        devices: Vec<DeviceSnapshot>,
        /// How to continue after a cut, where that is possible.
        resume: Option<ResumeTerms>,
        /// Bytes of each device's memory that the client may use unasked; see `Allowance`.
        allowances: Vec<u64>,
    }
}

message! {
    pub struct ResumeTerms {
        secret: SessionSecret,
        /// How long the worker waits for the client to come back, in milliseconds.
        linger_ms: u32,
        /// Whether the client may send commands as what changed: it has asked for that.
        expands: bool,
    }
}

message! {
    pub struct SessionRefused { reason: String }
}

message! {
    /// The first frame on a connection that resumes a session, or asks for it again; outside the
    /// streams, which follow it.
    pub struct SessionResumed {
        /// Bytes of the client's stream that the worker has received.
        received: u64,
    }
}

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
        /// The part of `memory_used` that is in host memory now.
        memory_swapped: u64,
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

message! {
    /// A worker's first word to another node's: pieces of copies may come (`peer`).
    pub struct PeerReady {}
}

message! {
    /// The answer to what cannot be answered otherwise.
    pub struct Refused { reason: String }
}

message! {
    /// The answer to a question that holders of the node's token may ask: to be asked again after a
    /// `TokenProof`.
    pub struct TokenWanted {
        /// Of this connection alone.
        challenge: [u8; 32],
    }
}

message! {
    /// That the asker has the token; what it is nobody hears. No answer: that is the one to the
    /// question that follows.
    pub struct TokenProof {
        /// HMAC-SHA256 of the challenge and of the fingerprint of the node's certificate, if it has
        /// shown one, by the token.
        proof: [u8; 32],
    }
}

macro_rules! control {
    ($($number:literal $name:ident)*) => {
        /// Any control message; its number travels in the frame header.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Control {
            $($name($name),)*
        }

        $(impl From<$name> for Control {
            fn from(message: $name) -> Control {
                Control::$name(message)
            }
        })*

        impl Control {
            /// The `op` of its frame.
            pub fn number(&self) -> u16 {
                match self {
                    $(Control::$name(_) => $number,)*
                }
            }

            pub fn decode(number: u16, payload: &[u8]) -> Result<Control, WireError> {
                match number {
                    $($number => Ok(Control::$name(decode(payload)?)),)*
                    other => Err(WireError::Value { what: "a control message", value: other.into() }),
                }
            }
        }

        impl Encode for Control {
            fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $(Control::$name(message) => message.encode(out),)*
                }
            }
        }
    };
}

control! {
    1 LeaseRequest
    2 LeaseGranted
    3 LeaseRefused
    4 StatusRequest
    5 Status
    6 DevicesRequest
    7 Devices
    8 SessionOpen
    9 SessionOpened
    10 SessionRefused
    11 Refused
    12 UsageRequest
    13 Usage
    14 LeaseClaim
    15 EchoRequest
    16 EchoReady
    17 SessionResumed
    18 LeaseResume
    19 LeaseResumed
    20 LeaseEnd
    21 ProcessWatch
    22 ProcessEnded
    23 ShareMemory
    24 SharedMemory
    25 SharedMemoryTaken
    26 PeerReady
    27 TokenWanted
    28 TokenProof
    29 LeaseResize
    30 LeaseResized
    31 LeaseRegrant
    32 Suspend
    33 Suspended
    34 ProcessesRequest
    35 Processes
    36 Migrate
    37 Migrated
    38 MoveOffer
    39 MoveAccepted
    40 MovePiece
    41 MoveArrived
    42 MoveDecided
    43 LeaseMoved
    44 SessionMoved
    45 MovePlanned
    46 Checkpoint
    47 CheckpointBegun
    48 CheckpointDecided
    49 Checkpointed
    50 LeaseStored
    51 LeaseQuestion
    52 LeaseHere
    53 LeaseRestored
}

impl Control {
    /// Appends its frame.
    pub fn frame(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        let header = crate::frame::Header {
            kind: crate::frame::Kind::Control,
            device: 0,
            op: self.number(),
            lane: 0,
            sequence: 0,
        };
        header.frame(out, |out| self.encode(out))
    }
}
