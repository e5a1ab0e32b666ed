//! Streams and events.

#![allow(non_snake_case)] // CUDA's names
#![allow(unused_variables)] // prototypes are those of the list

use std::ffi::c_void;

use sluice_cuda::*;

use super::ByHand;
use crate::call::{Call, Violation};
use crate::generated::{Events, Streams};
use crate::structures::*;

impl Streams for ByHand {
    fn cuStreamCreate(call: &Call, phStream: *mut CUstream, Flags: u32) -> Result<(), Violation> {
        call.out(phStream)?;
        call.bits(Flags.into(), 1)
    }

    fn cuStreamCreateWithPriority(
        call: &Call,
        phStream: *mut CUstream,
        flags: u32,
        priority: i32,
    ) -> Result<(), Violation> {
        call.bits(flags.into(), 1)
    }

    fn cuStreamBeginCapture_v2(
        call: &Call,
        hStream: CUstream,
        mode: CUstreamCaptureMode,
    ) -> Result<(), Violation> {
        call.within(mode.0.into(), 0..=2)
    }

    fn cuStreamBeginCaptureToGraph(
        call: &Call,
        hStream: CUstream,
        hGraph: CUgraph,
        dependencies: *const CUgraphNode,
        dependencyData: *const CUgraphEdgeData,
        numDependencies: usize,
        mode: CUstreamCaptureMode,
    ) -> Result<(), Violation> {
        call.nodes(dependencies, numDependencies)?;
        call.within(mode.0.into(), 0..=2)?;
        if dependencyData.is_null() {
            Ok(())
        } else {
            call.list(dependencyData, numDependencies as u64).map(drop)
        }
    }

    fn cuStreamGetCaptureInfo_v2(
        call: &Call,
        hStream: CUstream,
        captureStatus_out: *mut CUstreamCaptureStatus,
        id_out: *mut u64,
        graph_out: *mut CUgraph,
        dependencies_out: *mut *const CUgraphNode,
        numDependencies_out: *mut usize,
    ) -> Result<(), Violation> {
        call.out(captureStatus_out)?;
        call.out(id_out)?;
        call.out(graph_out)?;
        call.out(dependencies_out)?;
        call.out(numDependencies_out)
    }

    fn cuStreamGetCaptureInfo_v3(
        call: &Call,
        hStream: CUstream,
        captureStatus_out: *mut CUstreamCaptureStatus,
        id_out: *mut u64,
        graph_out: *mut CUgraph,
        dependencies_out: *mut *const CUgraphNode,
        edgeData_out: *mut *const CUgraphEdgeData,
        numDependencies_out: *mut usize,
    ) -> Result<(), Violation> {
        call.out(captureStatus_out)?;
        call.out(id_out)?;
        call.out(graph_out)?;
        call.out(dependencies_out)?;
        call.out(edgeData_out)?;
        call.out(numDependencies_out)
    }

    fn cuStreamIsCapturing(
        call: &Call,
        hStream: CUstream,
        captureStatus: *mut CUstreamCaptureStatus,
    ) -> Result<(), Violation> {
        call.out(captureStatus)
    }

    fn cuStreamUpdateCaptureDependencies(
        call: &Call,
        hStream: CUstream,
        dependencies: *mut CUgraphNode,
        numDependencies: usize,
        flags: u32,
    ) -> Result<(), Violation> {
        call.nodes(dependencies, numDependencies)?;
        call.within(flags.into(), 0..=1)
    }

    fn cuStreamUpdateCaptureDependencies_v2(
        call: &Call,
        hStream: CUstream,
        dependencies: *mut CUgraphNode,
        dependencyData: *const CUgraphEdgeData,
        numDependencies: usize,
        flags: u32,
    ) -> Result<(), Violation> {
        call.nodes(dependencies, numDependencies)?;
        call.within(flags.into(), 0..=1)?;
        if dependencyData.is_null() {
            Ok(())
        } else {
            call.list(dependencyData, numDependencies as u64).map(drop)
        }
    }

    fn cuStreamWaitValue32(
        call: &Call,
        stream: CUstream,
        addr: CUdeviceptr,
        value: u32,
        flags: u32,
    ) -> Result<(), Violation> {
        call.aligned(addr, 4)
    }

    fn cuStreamWriteValue32(
        call: &Call,
        stream: CUstream,
        addr: CUdeviceptr,
        value: u32,
        flags: u32,
    ) -> Result<(), Violation> {
        call.aligned(addr, 4)
    }

    fn cuStreamWaitValue32_v2(
        call: &Call,
        stream: CUstream,
        addr: CUdeviceptr,
        value: u32,
        flags: u32,
    ) -> Result<(), Violation> {
        call.aligned(addr, 4)
    }

    fn cuStreamWriteValue32_v2(
        call: &Call,
        stream: CUstream,
        addr: CUdeviceptr,
        value: u32,
        flags: u32,
    ) -> Result<(), Violation> {
        call.aligned(addr, 4)
    }

    fn cuStreamWaitValue64(
        call: &Call,
        stream: CUstream,
        addr: CUdeviceptr,
        value: u64,
        flags: u32,
    ) -> Result<(), Violation> {
        call.aligned(addr, 8)
    }

    fn cuStreamWriteValue64(
        call: &Call,
        stream: CUstream,
        addr: CUdeviceptr,
        value: u64,
        flags: u32,
    ) -> Result<(), Violation> {
        call.aligned(addr, 8)
    }

    fn cuStreamWaitValue64_v2(
        call: &Call,
        stream: CUstream,
        addr: CUdeviceptr,
        value: u64,
        flags: u32,
    ) -> Result<(), Violation> {
        call.aligned(addr, 8)
    }

    fn cuStreamWriteValue64_v2(
        call: &Call,
        stream: CUstream,
        addr: CUdeviceptr,
        value: u64,
        flags: u32,
    ) -> Result<(), Violation> {
        call.aligned(addr, 8)
    }

    fn cuStreamGetAttribute(
        call: &Call,
        hStream: CUstream,
        attr: u32,
        value_out: *mut c_void,
    ) -> Result<(), Violation> {
        call.within(attr.into(), 0..=ATTRIBUTE_LAST)?;
        call.out(value_out.cast::<CUlaunchAttributeValue>())
    }

    fn cuStreamSetAttribute(
        call: &Call,
        hStream: CUstream,
        attr: u32,
        value: *const c_void,
    ) -> Result<(), Violation> {
        call.stream_attribute(attr, &call.read(value.cast::<CUlaunchAttributeValue>())?)
    }

    fn cuStreamAddCallback(
        call: &Call,
        hStream: CUstream,
        callback: CUstreamCallback,
        userData: *mut c_void,
        flags: u32,
    ) -> Result<(), Violation> {
        if callback.is_none() || userData.is_null() || flags != 0 {
            return Err("no function to call".into());
        }
        Ok(())
    }
}

impl Events for ByHand {
    fn cuEventCreate(call: &Call, phEvent: *mut CUevent, Flags: u32) -> Result<(), Violation> {
        call.bits(Flags.into(), 7)?;
        if Flags & 4 != 0 { call.one_of(Flags & 2, &[2]) } else { Ok(()) }
    }
}
