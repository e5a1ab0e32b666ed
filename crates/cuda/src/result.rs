//! Result codes of the CUDA Driver API with their names and a sentence for people.

use std::ffi::CStr;

/// What every driver function returns. Any number may come from a driver newer than this list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
#[must_use]
pub struct CUresult(pub i32);

impl CUresult {
    pub const SUCCESS: CUresult = CUresult(0);

    pub fn is_success(self) -> bool {
        self.0 == 0
    }

    /// `Ok` on success, else the code as an error, so that `?` carries driver errors.
    pub fn ok(self) -> Result<(), CUresult> {
        if self.is_success() { Ok(()) } else { Err(self) }
    }

    /// CUDA's name of this code, as `cuGetErrorName` gives it.
    pub fn name(self) -> Option<&'static CStr> {
        CODES.iter().find(|code| code.0 == self).map(|code| code.1)
    }

    /// What this code means, as `cuGetErrorString` gives it.
    pub fn description(self) -> Option<&'static CStr> {
        CODES.iter().find(|code| code.0 == self).map(|code| code.2)
    }

    /// Whether the context is lost, or the whole process: every later call in it answers the same
    /// code (CUDA Driver API, `CUresult`).
    pub fn is_sticky(self) -> bool {
        matches!(
            self,
            Self::ILLEGAL_ADDRESS
                | Self::LAUNCH_TIMEOUT
                | Self::ASSERT
                | Self::HARDWARE_STACK_ERROR
                | Self::ILLEGAL_INSTRUCTION
                | Self::MISALIGNED_ADDRESS
                | Self::INVALID_ADDRESS_SPACE
                | Self::INVALID_PC
                | Self::LAUNCH_FAILED
                | Self::TENSOR_MEMORY_LEAK
                | Self::ECC_UNCORRECTABLE
                | Self::NVLINK_UNCORRECTABLE
                | Self::CONTAINED
                | Self::EXTERNAL_DEVICE
                | Self::MPS_CLIENT_TERMINATED
                | Self::UNKNOWN
        )
    }
}

/// The code that the C side gets for a Rust result.
impl From<Result<(), CUresult>> for CUresult {
    fn from(result: Result<(), CUresult>) -> CUresult {
        result.err().unwrap_or(CUresult::SUCCESS)
    }
}

impl std::error::Error for CUresult {}

impl std::fmt::Display for CUresult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.name(), self.description()) {
            (Some(name), Some(text)) => write!(f, "{} ({})", name.to_string_lossy(), text.to_string_lossy()),
            _ => write!(f, "CUDA error {}", self.0),
        }
    }
}

impl std::fmt::Debug for CUresult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(&name.to_string_lossy()),
            None => write!(f, "CUresult({})", self.0),
        }
    }
}

const fn c_str(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a table text ends with its only NUL"),
    }
}

macro_rules! errors {
    ($($name:ident = $code:literal $text:literal)*) => {
        impl CUresult {
            $(pub const $name: CUresult = CUresult($code);)*
        }

        const CODES: &[(CUresult, &CStr, &CStr)] = &[
            (CUresult::SUCCESS, c"CUDA_SUCCESS", c"no error"),
            $((CUresult::$name, c_str(concat!("CUDA_ERROR_", stringify!($name), "\0")), c_str(concat!($text, "\0"))),)*
        ];
    };
}

errors! {
    INVALID_VALUE = 1 "invalid argument"
    OUT_OF_MEMORY = 2 "out of memory"
    NOT_INITIALIZED = 3 "cuInit has not been called in this process"
    DEINITIALIZED = 4 "the driver is shutting down"
    PROFILER_DISABLED = 5 "no profiler is attached"
    PROFILER_NOT_INITIALIZED = 6 "the profiler is not initialised"
    PROFILER_ALREADY_STARTED = 7 "the profiler runs already"
    PROFILER_ALREADY_STOPPED = 8 "the profiler has stopped already"
    STUB_LIBRARY = 34 "the loaded libcuda is a stub for linking"
    CALL_REQUIRES_NEWER_DRIVER = 36 "this call needs a newer driver"
    DEVICE_UNAVAILABLE = 46 "the device is busy or unreachable"
    MULTICAST_RESOURCE_FULL = 47 "no multicast object is left"
    NO_DEVICE = 100 "no CUDA-capable device is detected"
    INVALID_DEVICE = 101 "invalid device ordinal"
    DEVICE_NOT_LICENSED = 102 "the device has no valid licence"
    INVALID_IMAGE = 200 "the device kernel image is invalid"
    INVALID_CONTEXT = 201 "invalid device context"
    CONTEXT_ALREADY_CURRENT = 202 "the context is current already"
    MAP_FAILED = 205 "mapping failed"
    UNMAP_FAILED = 206 "unmapping failed"
    ARRAY_IS_MAPPED = 207 "the array is mapped"
    ALREADY_MAPPED = 208 "the resource is mapped already"
    NO_BINARY_FOR_GPU = 209 "no kernel image is available for execution on the device"
    ALREADY_ACQUIRED = 210 "the resource is acquired already"
    NOT_MAPPED = 211 "the resource is not mapped"
    NOT_MAPPED_AS_ARRAY = 212 "the resource is not mapped as an array"
    NOT_MAPPED_AS_POINTER = 213 "the resource is not mapped as a pointer"
    ECC_UNCORRECTABLE = 214 "device memory reported an error it could not correct"
    UNSUPPORTED_LIMIT = 215 "the device does not have this limit"
    CONTEXT_ALREADY_IN_USE = 216 "another thread uses the context exclusively"
    PEER_ACCESS_UNSUPPORTED = 217 "these devices cannot reach each other's memory"
    INVALID_PTX = 218 "the PTX could not be compiled"
    INVALID_GRAPHICS_CONTEXT = 219 "invalid graphics context"
    NVLINK_UNCORRECTABLE = 220 "NVLink reported an error it could not correct"
    JIT_COMPILER_NOT_FOUND = 221 "no PTX compiler is available"
    UNSUPPORTED_PTX_VERSION = 222 "the PTX is of a version newer than the compiler"
    JIT_COMPILATION_DISABLED = 223 "compiling PTX is switched off"
    UNSUPPORTED_EXEC_AFFINITY = 224 "the device does not support this execution affinity"
    UNSUPPORTED_DEVSIDE_SYNC = 225 "the code synchronises from the device, which is not supported"
    CONTAINED = 226 "a contained memory error ended the context"
    INSUFFICIENT_LOADER_VERSION = 227 "the program loader is too old for this image"
    INVALID_SOURCE = 300 "the kernel source is invalid"
    FILE_NOT_FOUND = 301 "file not found"
    SHARED_OBJECT_SYMBOL_NOT_FOUND = 302 "a symbol is missing in a shared object"
    SHARED_OBJECT_INIT_FAILED = 303 "a shared object could not be initialised"
    OPERATING_SYSTEM = 304 "an operating system call failed"
    INVALID_HANDLE = 400 "invalid resource handle"
    ILLEGAL_STATE = 401 "the resource is in the wrong state for this call"
    LOSSY_QUERY = 402 "the answer would leave out information"
    NOT_FOUND = 500 "named symbol not found"
    NOT_READY = 600 "the work has not finished yet"
    ILLEGAL_ADDRESS = 700 "an illegal memory access was encountered"
    LAUNCH_OUT_OF_RESOURCES = 701 "too many resources requested for launch"
    LAUNCH_TIMEOUT = 702 "the launch timed out and was terminated"
    LAUNCH_INCOMPATIBLE_TEXTURING = 703 "the launch uses an incompatible texturing mode"
    PEER_ACCESS_ALREADY_ENABLED = 704 "peer access is enabled already"
    PEER_ACCESS_NOT_ENABLED = 705 "peer access is not enabled"
    PRIMARY_CONTEXT_ACTIVE = 708 "the primary context is active"
    CONTEXT_IS_DESTROYED = 709 "the context is destroyed"
    ASSERT = 710 "device-side assert triggered"
    TOO_MANY_PEERS = 711 "no more peers can be enabled"
    HOST_MEMORY_ALREADY_REGISTERED = 712 "the host memory is registered already"
    HOST_MEMORY_NOT_REGISTERED = 713 "the host memory is not registered"
    HARDWARE_STACK_ERROR = 714 "a kernel overran its stack"
    ILLEGAL_INSTRUCTION = 715 "an illegal instruction was encountered"
    MISALIGNED_ADDRESS = 716 "misaligned address"
    INVALID_ADDRESS_SPACE = 717 "an instruction reached into the wrong address space"
    INVALID_PC = 718 "the program counter left the code"
    LAUNCH_FAILED = 719 "unspecified launch failure"
    COOPERATIVE_LAUNCH_TOO_LARGE = 720 "too many blocks in a cooperative launch"
    TENSOR_MEMORY_LEAK = 721 "a kernel ended without freeing its tensor memory"
    NOT_PERMITTED = 800 "operation not permitted"
    NOT_SUPPORTED = 801 "operation not supported"
    SYSTEM_NOT_READY = 802 "the system is not ready for CUDA yet"
    SYSTEM_DRIVER_MISMATCH = 803 "the parts of the driver have different versions"
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804 "forward compatibility is not supported on this device"
    MPS_CONNECTION_FAILED = 805 "the MPS server cannot be reached"
    MPS_RPC_FAILURE = 806 "the MPS server answered wrongly"
    MPS_SERVER_NOT_READY = 807 "the MPS server is not ready"
    MPS_MAX_CLIENTS_REACHED = 808 "the MPS server has too many clients"
    MPS_MAX_CONNECTIONS_REACHED = 809 "the MPS server has too many connections"
    MPS_CLIENT_TERMINATED = 810 "the MPS server ended this client"
    CDP_NOT_SUPPORTED = 811 "launching from the device is not supported"
    CDP_VERSION_MISMATCH = 812 "device-side launches were built for different versions"
    STREAM_CAPTURE_UNSUPPORTED = 900 "the operation is not allowed while a stream is capturing"
    STREAM_CAPTURE_INVALIDATED = 901 "an earlier error invalidated the capture"
    STREAM_CAPTURE_MERGE = 902 "the operation would merge two captures"
    STREAM_CAPTURE_UNMATCHED = 903 "the capture did not begin in this stream"
    STREAM_CAPTURE_UNJOINED = 904 "a forked stream has not joined the capture again"
    STREAM_CAPTURE_ISOLATION = 905 "a dependency would cross the border of the capture"
    STREAM_CAPTURE_IMPLICIT = 906 "the operation depends on the legacy stream, which cannot be captured"
    CAPTURED_EVENT = 907 "the event was last recorded in a capture"
    STREAM_CAPTURE_WRONG_THREAD = 908 "another thread began this capture"
    TIMEOUT = 909 "a wait ran out of time"
    GRAPH_EXEC_UPDATE_FAILURE = 910 "the graph differs too much for an update"
    EXTERNAL_DEVICE = 911 "a device outside the GPU failed"
    INVALID_CLUSTER_SIZE = 912 "invalid cluster size"
    FUNCTION_NOT_LOADED = 913 "the function is not loaded"
    INVALID_RESOURCE_TYPE = 914 "invalid type of device resource"
    INVALID_RESOURCE_CONFIGURATION = 915 "invalid configuration of device resources"
    KEY_ROTATION = 916 "a key rotation is under way"
    STREAM_DETACHED = 917 "the stream is detached"
    GRAPH_RECAPTURE_FAILURE = 918 "the graph could not be captured again"
    FABRIC_NOT_READY = 919 "the fabric is not ready"
    UNKNOWN = 999 "unknown error"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_one_name() {
        for (index, (code, name, _)) in CODES.iter().enumerate() {
            assert_eq!(CODES.iter().position(|other| other.0 == *code), Some(index), "{name:?}");
        }
        assert_eq!(CUresult::ILLEGAL_ADDRESS.name(), Some(c"CUDA_ERROR_ILLEGAL_ADDRESS"));
        assert_eq!(CUresult(-7).name(), None);
    }

    #[test]
    fn only_lost_contexts_are_sticky() {
        assert!(CUresult::LAUNCH_FAILED.is_sticky());
        for (code, _, _) in CODES.iter().filter(|(code, ..)| (700..720).contains(&code.0)) {
            let is_usable = [701, 703, 704, 705, 708, 709, 711, 712, 713].contains(&code.0);
            assert_eq!(code.is_sticky(), !is_usable, "{code:?}");
        }
        assert!(!CUresult::OUT_OF_MEMORY.is_sticky() && !CUresult::COOPERATIVE_LAUNCH_TOO_LARGE.is_sticky());
    }
}
