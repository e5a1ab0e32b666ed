//! Whether a handle is live: the driver behind is asked a question about it that changes nothing.
//! It looks handles up and follows none, so a dead or forged one is an answer and no more.

use std::fmt::Debug;
use std::ptr::null_mut;

use sluice_cuda::*;

use crate::{inner, objects};

/// A handle of the driver.
pub(crate) trait Live: Copy + Debug {
    fn is_live(self) -> bool;
}

/// A question about a handle, with places for what is answered.
macro_rules! live {
    ($($handle:ident: |$self:tt| $question:ident($($argument:expr),*),)*) => {$(
        impl Live for $handle {
            fn is_live($self) -> bool {
                // SAFETY: the places are locals of the types that the question answers with.
                inner().$question.is_some_and(|ask| unsafe { ask($($argument),*) }.is_success())
            }
        }
    )*};
}

live! {
    CUmodule: |self| cuModuleGetFunctionCount(&mut 0, self),
    CUfunction: |self| cuFuncGetName(&mut std::ptr::null(), self),
    CUgraph: |self| cuGraphGetNodes(self, null_mut(), &mut 0),
    CUgraphNode: |self| cuGraphNodeGetType(self, &mut CUgraphNodeType::default()),
    CUgraphExec: |self| cuGraphExecGetFlags(self, &mut 0),
    CUarray: |self| cuArray3DGetDescriptor_v2(std::mem::MaybeUninit::uninit().as_mut_ptr(), self),
    CUtexref: |self| cuTexRefGetFlags(&mut 0, self),
    CUcontext: |self| cuCtxGetApiVersion(self, &mut 0),
    CUgreenCtx: |self| cuGreenCtxGetId(self, &mut 0),
}

impl Live for CUstream {
    fn is_live(self) -> bool {
        // The default streams are always there.
        // SAFETY: the place is a local.
        let ask = || inner().cuStreamGetFlags.is_some_and(|ask| unsafe { ask(self, &mut 0) }.is_success());
        self <= CUstream::PER_THREAD || ask()
    }
}

/// Whether a context is current on the calling thread.
fn has_context() -> bool {
    let mut context = CUcontext::NULL;
    // SAFETY: the place is a local.
    let asked = inner().cuCtxGetCurrent.is_some_and(|ask| unsafe { ask(&mut context) }.is_success());
    asked && !context.is_null()
}

impl Live for CUevent {
    fn is_live(self) -> bool {
        // Every other answer tells something about an event that is there. Events end with their
        // context, and the owner of some may outlive it: it has no current context then.
        // SAFETY: a handle.
        let is_known =
            inner().cuEventQuery.is_some_and(|ask| unsafe { ask(self) } != CUresult::INVALID_HANDLE);
        is_known || !has_context()
    }
}

impl Live for CUsurfref {
    fn is_live(self) -> bool {
        // One to which nothing is bound says that.
        let (ask, mut array) = (inner().cuSurfRefGetArray, CUarray::NULL);
        // SAFETY: the place is a local.
        ask.is_some_and(|ask| unsafe { ask(&mut array, self) } != CUresult::INVALID_HANDLE)
    }
}

impl Live for CUmemGenericAllocationHandle {
    fn is_live(self) -> bool {
        let mut prop = std::mem::MaybeUninit::<CUmemAllocationProp>::zeroed();
        let ask = inner().cuMemGetAllocationPropertiesFromHandle;
        // SAFETY: the place is a local.
        ask.is_some_and(|ask| unsafe { ask(prop.as_mut_ptr(), self) }.is_success())
    }
}

impl Live for CUuserObject {
    fn is_live(self) -> bool {
        objects::is_owned(self)
    }
}

impl Live for CUdevResourceDesc {
    fn is_live(self) -> bool {
        // Nothing can be asked about one, and none ever ends.
        !self.is_null()
    }
}

impl Live for CUmipmappedArray {
    fn is_live(self) -> bool {
        // Every question about one makes something.
        !self.is_null()
    }
}

/// Handles of functions that no worker calls.
macro_rules! unknown {
    ($($handle:ident)*) => {$(
        impl Live for $handle {
            fn is_live(self) -> bool {
                false
            }
        }
    )*};
}

unknown! { CUlibrary CUkernel CUlinkState CUmemoryPool }
