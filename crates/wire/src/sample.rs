//! Random messages for tests: any value of any message, made from random bytes.

use std::ffi::CStr;

use sluice_cuda::*;

use crate::{
    Command, Encode, Op, commands,
    handshake::{LeaseToken, OpeningNonce, PeerToken, SessionSecret},
    types::*,
};

/// What a number becomes, by the name of its type: a palette may prefer ids that were given out,
/// sizes that fit.
pub type Palette<'s> = &'s dyn std::ops::Fn(&'static str, u64) -> u64;

/// The payload of a command whose fields are made of `bytes`; `None` for what is no operation.
pub fn payload(op: Op, bytes: &[u8], palette: Palette<'_>) -> Option<Vec<u8>> {
    macro_rules! encode_sample {
        ($($name:ident)*) => {
            $(if op == <commands::$name as Command>::OP {
                let mut payload = Vec::new();
                commands::$name::sample(&mut Source { palette, ..Source::new(bytes) }).encode(&mut payload);
                return Some(payload);
            })*
        };
    }
    crate::for_each_command!(encode_sample);
    None
}

/// A manifest of a checkpoint made of these bytes.
pub fn manifest(bytes: &[u8]) -> crate::checkpoint::Manifest {
    Sample::sample(&mut Source::new(bytes))
}

/// The state of a session made of these bytes.
pub fn session_state(bytes: &[u8]) -> crate::migration::SessionState {
    Sample::sample(&mut Source::new(bytes))
}

/// A value made of random bytes.
pub(crate) trait Sample<'s> {
    fn sample(source: &mut Source<'s>) -> Self;
}

/// Random bytes; zeros when they run out, so that every sample ends.
pub(crate) struct Source<'s> {
    rest: &'s [u8],
    palette: Palette<'s>,
    /// The type that the next number is of, if it has a name of its own.
    of: Option<&'static str>,
}

impl<'s> Source<'s> {
    pub(crate) fn new(bytes: &'s [u8]) -> Source<'s> {
        Source { rest: bytes, palette: &|_, raw| raw, of: None }
    }

    fn take(&mut self, count: usize) -> &'s [u8] {
        let (taken, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    fn small(&mut self) -> usize {
        usize::from(u8::sample(self) % 8)
    }
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Sample<'_> for $number {
            fn sample(source: &mut Source<'_>) -> Self {
                let mut bytes = [0; size_of::<$number>()];
                let taken = source.take(bytes.len());
                bytes[..taken.len()].copy_from_slice(taken);
                let of = source.of.unwrap_or(stringify!($number));
                (source.palette)(of, <$number>::from_le_bytes(bytes) as u64) as $number
            }
        }
    )*};
}

numbers! { u8 u16 u32 u64 i32 i64 }

impl Sample<'_> for f32 {
    fn sample(source: &mut Source<'_>) -> Self {
        // Not a bit pattern: NaN would not equal itself.
        i32::sample(source) as f32
    }
}

impl Sample<'_> for () {
    fn sample(_: &mut Source<'_>) -> Self {}
}

impl Sample<'_> for bool {
    fn sample(source: &mut Source<'_>) -> Self {
        u8::sample(source) % 2 == 1
    }
}

impl<'s> Sample<'s> for &'s [u8] {
    fn sample(source: &mut Source<'s>) -> Self {
        let count = source.small() * 7;
        source.take(count)
    }
}

impl<'s> Sample<'s> for &'s CStr {
    fn sample(source: &mut Source<'s>) -> Self {
        [c"", c"saxpy", c"_Z6kernelPfi"][source.small() % 3]
    }
}

impl Sample<'_> for String {
    fn sample(source: &mut Source<'_>) -> Self {
        "größe".repeat(source.small())
    }
}

impl<'s, T: Sample<'s>> Sample<'s> for Vec<T> {
    fn sample(source: &mut Source<'s>) -> Self {
        (0..source.small()).map(|_| T::sample(source)).collect()
    }
}

impl<'s, T: Sample<'s>> Sample<'s> for Option<T> {
    fn sample(source: &mut Source<'s>) -> Self {
        bool::sample(source).then(|| T::sample(source))
    }
}

impl<'s, T: Sample<'s>> Sample<'s> for Box<T> {
    fn sample(source: &mut Source<'s>) -> Self {
        Box::new(T::sample(source))
    }
}

impl<'s, T: Sample<'s>, const N: usize> Sample<'s> for [T; N] {
    fn sample(source: &mut Source<'s>) -> Self {
        std::array::from_fn(|_| T::sample(source))
    }
}

impl<'s, A: Sample<'s>, B: Sample<'s>> Sample<'s> for (A, B) {
    fn sample(source: &mut Source<'s>) -> Self {
        (A::sample(source), B::sample(source))
    }
}

macro_rules! wrapped {
    ($($name:ident)*) => {$(
        impl Sample<'_> for $name {
            fn sample(source: &mut Source<'_>) -> Self {
                source.of = Some(stringify!($name));
                let value = $name(Sample::sample(source));
                source.of = None;
                value
            }
        }
    )*};
}

wrapped! {
    StreamId EventId ModuleId FunctionId GraphId GraphNodeId GraphExecId ArrayId DevicePtr ImageHash ExportToken LeaseToken SessionSecret PeerToken OpeningNonce
    CUlimit CUfunction_attribute CUdevice_attribute CUstreamCaptureMode CUlaunchAttributeID PhysicalId
    CUmemAllocationType CUmemAllocationHandleType CUmemAllocationGranularity_flags CUmemLocationType
    CUmemAccess_flags CUgraphNodeType CUdevResourceType CUstreamBatchMemOpType UserObjectId
    MipmappedArrayId GreenCtxId ResourceDescId TexRefId SurfRefId CUarray_format CUaddress_mode CUfilter_mode CUjit_option
}

impl Sample<'_> for CUlaunchAttribute {
    fn sample(source: &mut Source<'_>) -> Self {
        let value = CUlaunchAttributeValue { words: Sample::sample(source) };
        CUlaunchAttribute { id: Sample::sample(source), pad: [0; 4], value }
    }
}

impl Sample<'_> for CUtensorMap {
    fn sample(source: &mut Source<'_>) -> Self {
        CUtensorMap { opaque: Sample::sample(source) }
    }
}

impl Sample<'_> for CUmemLocation {
    fn sample(source: &mut Source<'_>) -> Self {
        CUmemLocation { kind: Sample::sample(source), id: Sample::sample(source) }
    }
}

impl Sample<'_> for CUmemAccessDesc {
    fn sample(source: &mut Source<'_>) -> Self {
        CUmemAccessDesc { location: Sample::sample(source), flags: Sample::sample(source) }
    }
}

impl Sample<'_> for Presence {
    fn sample(source: &mut Source<'_>) -> Self {
        let mut presence = Presence::default();
        for _ in 0..source.small() {
            presence.insert(Fn::from_number(u16::sample(source) % Fn::COUNT as u16).unwrap());
        }
        presence
    }
}
