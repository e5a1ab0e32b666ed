//! What is asked for.

use crate::{GPUS_PER_NODE_MAX, Link, NodeSpec, WHOLE_GPU_MILLI};

/// A GPU model, as the caller numbers them: 0 to 63.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelId(u8);

/// A label that requests select nodes by (a zone, a pool, a driver version), as the caller numbers
/// them: 0 to 63.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LabelId(u8);

macro_rules! small_set {
    ($(#[$doc:meta])* $set:ident of $id:ident) => {
        impl $id {
            /// None above 63.
            pub const fn new(id: u8) -> Option<$id> {
                if id < 64 { Some($id(id)) } else { None }
            }

            pub fn all() -> impl Iterator<Item = $id> {
                (0..64).map($id)
            }

            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $set(u64);

        impl $set {
            pub const NONE: $set = $set(0);
            pub const ALL: $set = $set(u64::MAX);

            pub const fn with(self, id: $id) -> $set {
                $set(self.0 | 1 << id.0)
            }

            pub const fn contains(self, id: $id) -> bool {
                self.0 >> id.0 & 1 == 1
            }

            pub const fn contains_all(self, other: $set) -> bool {
                other.0 & !self.0 == 0
            }
        }

        impl FromIterator<$id> for $set {
            fn from_iter<I: IntoIterator<Item = $id>>(ids: I) -> $set {
                ids.into_iter().fold($set::NONE, $set::with)
            }
        }
    };
}

small_set! {
    /// The models that a request accepts.
    ModelSet of ModelId
}
small_set! {
    /// The labels of a node, or those that a request asks of one.
    LabelSet of LabelId
}

/// What one piece of work needs, all of it on one node. Compute and memory of a GPU are separate
/// dimensions.
///
/// Requests that are equal are one class: the placer keeps its scores of all nodes per class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Request {
    pub cpu_milli: u32,
    /// Host memory.
    pub memory_mib: u32,
    /// Different GPUs; 0 for work that needs none.
    pub gpus: u8,
    /// Share of compute of each of them, 1 to 1000; 0 where `gpus` is 0. With `by_units` the most
    /// that this is of any GPU accepted.
    pub gpu_milli: u16,
    /// Share of compute in thousandths of the units in which GPUs of all models are counted alike
    /// ([`crate::NodeSpec::gpu_units_milli`]): with `by_units` what is asked for, else the most
    /// that the share is of any GPU accepted, 0 where units do not matter.
    pub gpu_units_milli: u32,
    /// Asks of each GPU for the share that gives these units, whichever GPU that is.
    pub by_units: bool,
    /// Device memory on each of them. With `memory_by_share` the most that this is of any GPU
    /// accepted.
    pub gpu_memory_mib: u32,
    /// Of each GPU the same part of the memory as of the compute that may be promised, whichever
    /// GPU that is.
    pub memory_by_share: bool,
    /// Its memory never leaves its GPUs, however far their memory is overcommitted.
    pub fixed: bool,
    /// Any of these; not looked at where `gpus` is 0.
    pub models: ModelSet,
    /// All of these.
    pub labels: LabelSet,
    /// What its GPUs have to have in common, each with each, where there are several.
    pub linked: Option<Link>,
}

/// A request that no cluster could ever answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    #[error("{gpus} GPUs on one node asked for; a node has at most {GPUS_PER_NODE_MAX}")]
    Gpus { gpus: u8 },
    #[error("{gpu_milli} thousandths of each GPU asked for; ask for 1 to 1000")]
    GpuMilli { gpu_milli: u16 },
    #[error("a share or memory of GPUs asked for, but no GPU; ask for at least one GPU")]
    ShareOfNoGpu,
    #[error("0 units of each GPU asked for; ask for some")]
    NoUnits,
    #[error("no accepted GPU model; name one, or accept all")]
    NoModel,
}

impl Request {
    /// Work without a GPU.
    pub const fn cpu(cpu_milli: u32, memory_mib: u32) -> Request {
        Request {
            cpu_milli,
            memory_mib,
            gpus: 0,
            gpu_milli: 0,
            gpu_units_milli: 0,
            by_units: false,
            gpu_memory_mib: 0,
            memory_by_share: false,
            fixed: false,
            models: ModelSet::ALL,
            labels: LabelSet::NONE,
            linked: None,
        }
    }

    /// Adds `gpu_milli` of each of `gpus` GPUs of any model.
    pub const fn with_gpus(self, gpus: u8, gpu_milli: u16) -> Request {
        Request { gpus, gpu_milli, ..self }
    }

    /// Adds the share that gives `gpu_units_milli` thousandths of a unit, at most `gpu_milli`, of
    /// each of `gpus` GPUs.
    pub const fn with_gpu_units(self, gpus: u8, gpu_units_milli: u32, gpu_milli: u16) -> Request {
        Request { gpus, gpu_milli, gpu_units_milli, by_units: true, ..self }
    }

    /// Adds the share's part of the memory of each GPU, at most `gpu_memory_mib`.
    pub const fn with_memory_by_share(self, gpu_memory_mib: u32) -> Request {
        Request { gpu_memory_mib, memory_by_share: true, ..self }
    }

    /// What it is on a node: units, share and memory follow from each other. A share above 1000 is
    /// more than its GPUs have.
    pub fn on(&self, spec: &NodeSpec) -> Request {
        let (units, of) = (u64::from(self.gpu_units_milli), u64::from(spec.gpu_units_milli));
        let here = if self.by_units {
            let milli = if of == 0 { u64::MAX } else { (units * u64::from(WHOLE_GPU_MILLI)).div_ceil(of) };
            Request { gpu_milli: u16::try_from(milli).unwrap_or(u16::MAX), ..*self }
        } else {
            let units = u64::from(self.gpu_milli) * of / u64::from(WHOLE_GPU_MILLI);
            Request { gpu_units_milli: units as u32, ..*self }
        };
        if !self.memory_by_share {
            return here;
        }
        // A whole GPU has no other holder, however much may be promised of it in parts.
        let promised = if here.gpu_milli == WHOLE_GPU_MILLI { WHOLE_GPU_MILLI } else { spec.gpu_milli };
        let memory = u64::from(spec.gpu_memory_mib) * u64::from(here.gpu_milli) / u64::from(promised.max(1));
        Request { gpu_memory_mib: u32::try_from(memory).unwrap_or(u32::MAX), ..here }
    }

    pub const fn with_gpu_memory(self, gpu_memory_mib: u32) -> Request {
        Request { gpu_memory_mib, ..self }
    }

    /// Requires memory that never leaves its GPUs.
    pub const fn with_fixed_memory(self) -> Request {
        Request { fixed: true, ..self }
    }

    pub const fn with_models(self, models: ModelSet) -> Request {
        Request { models, ..self }
    }

    pub const fn with_labels(self, labels: LabelSet) -> Request {
        Request { labels, ..self }
    }

    pub const fn with_linked(self, link: Link) -> Request {
        Request { linked: Some(link), ..self }
    }

    /// Compute of all its GPUs, in thousandths of one.
    pub const fn total_gpu_milli(&self) -> u64 {
        self.gpus as u64 * self.gpu_milli as u64
    }

    pub fn check(&self) -> Result<(), InvalidRequest> {
        let Request { gpus, gpu_milli, .. } = *self;
        if gpus == 0 {
            return if gpu_milli == 0 && self.gpu_memory_mib == 0 {
                Ok(())
            } else {
                Err(InvalidRequest::ShareOfNoGpu)
            };
        }
        if usize::from(gpus) > GPUS_PER_NODE_MAX {
            return Err(InvalidRequest::Gpus { gpus });
        }
        if gpu_milli == 0 || gpu_milli > WHOLE_GPU_MILLI {
            return Err(InvalidRequest::GpuMilli { gpu_milli });
        }
        if self.by_units && self.gpu_units_milli == 0 {
            return Err(InvalidRequest::NoUnits);
        }
        if self.models == ModelSet::NONE {
            return Err(InvalidRequest::NoModel);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_a_share_of_each_card_and_a_share_is_units() {
        let spec = |gpu_units_milli| NodeSpec {
            cpu_milli: 0,
            memory_mib: 0,
            gpus: 1,
            model: ModelId(0),
            gpu_milli: WHOLE_GPU_MILLI,
            gpu_memory_mib: 0,
            gpu_memory_leasable_mib: 0,
            gpu_units_milli,
            labels: LabelSet::NONE,
            domains: Vec::new(),
        };
        let five = Request::cpu(0, 0).with_gpu_units(1, 5000, 500);
        for (units, milli) in [
            (10_000, 500),
            (20_000, 250),
            (19_491, 257),
            (5000, 1000),
            (4999, 1001),
            (1, u16::MAX),
            (0, u16::MAX),
        ] {
            let on = five.on(&spec(units));
            assert_eq!((on.gpu_milli, on.gpu_units_milli), (milli, 5000), "{units}");
            assert_eq!(on.on(&spec(10_000)).gpu_milli, 500, "it may move");
        }
        let quarter = Request::cpu(0, 0).with_gpus(1, 250);
        for (units, expect) in [(20_000, 5000), (19_491, 4872), (0, 0)] {
            let on = quarter.on(&spec(units));
            assert_eq!((on.gpu_milli, on.gpu_units_milli), (250, expect), "{units}");
        }
    }

    #[test]
    fn memory_by_share_is_that_of_each_gpu() {
        let spec = |gpu_memory_mib, gpu_milli| NodeSpec {
            cpu_milli: 0,
            memory_mib: 0,
            gpus: 1,
            model: ModelId(0),
            gpu_milli,
            gpu_memory_mib,
            gpu_memory_leasable_mib: gpu_memory_mib,
            gpu_units_milli: 10_000,
            labels: LabelSet::NONE,
            domains: Vec::new(),
        };
        let quarter = Request::cpu(0, 0).with_gpus(1, 250).with_memory_by_share(20_480);
        let whole = Request::cpu(0, 0).with_gpus(1, 1000).with_memory_by_share(81_920);
        let by_units = Request::cpu(0, 0).with_gpu_units(1, 5_000, 500).with_memory_by_share(81_920);
        for (request, memory, promised, expect) in [
            (quarter, 16_384, 1000, 4_096),
            (quarter, 81_920, 1000, 20_480),
            (quarter, 81_920, 1500, 13_653),
            (whole, 81_920, 1500, 81_920),
            (by_units, 16_384, 1000, 8_192),
        ] {
            let on = request.on(&spec(memory, promised));
            assert_eq!(on.gpu_memory_mib, expect, "{request:?}");
            assert_eq!(
                on.on(&spec(16_384, 1000)).gpu_memory_mib,
                request.on(&spec(16_384, 1000)).gpu_memory_mib
            );
        }
    }

    #[test]
    fn impossible_requests_are_named() {
        let ok = Request::cpu(1000, 1024);
        for (request, expect) in [
            (ok, Ok(())),
            (ok.with_gpus(1, 1), Ok(())),
            (ok.with_gpus(4, 250).with_gpu_memory(1024), Ok(())),
            (ok.with_gpus(16, 1000), Ok(())),
            (ok.with_gpus(17, 1000), Err(InvalidRequest::Gpus { gpus: 17 })),
            (ok.with_gpus(1, 0), Err(InvalidRequest::GpuMilli { gpu_milli: 0 })),
            (ok.with_gpus(1, 1001), Err(InvalidRequest::GpuMilli { gpu_milli: 1001 })),
            (ok.with_gpus(0, 500), Err(InvalidRequest::ShareOfNoGpu)),
            (ok.with_gpu_memory(1), Err(InvalidRequest::ShareOfNoGpu)),
            (ok.with_gpu_units(1, 5000, 500), Ok(())),
            (ok.with_gpu_units(1, 0, 500), Err(InvalidRequest::NoUnits)),
            (ok.with_gpus(1, 500).with_models(ModelSet::NONE), Err(InvalidRequest::NoModel)),
        ] {
            assert_eq!(request.check(), expect, "{request:?}");
        }
    }
}
