//! Amounts of the resources that queues divide.

use std::ops::{AddAssign, Index, IndexMut, SubAssign};

use crate::Request;

/// A resource that queues divide. Compute and memory of GPUs are apart from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Resource {
    /// Compute of GPUs, in thousandths of one.
    Gpu,
    /// Device memory, in MiB.
    GpuMemory,
    /// CPU, in thousandths of a core.
    Cpu,
    /// Host memory, in MiB.
    Memory,
    /// Compute of GPUs in units, which count all models alike, in thousandths.
    GpuUnits,
}

impl Resource {
    pub const ALL: [Resource; RESOURCES] =
        [Resource::Gpu, Resource::GpuMemory, Resource::Cpu, Resource::Memory, Resource::GpuUnits];

    /// An amount of it for people: `2.5 GPUs`, `16 GiB of device memory`.
    pub fn describe(self, amount: u64) -> String {
        let number = |step: f64| {
            let text = format!("{:.3}", amount as f64 / step);
            text.trim_end_matches('0').trim_end_matches('.').to_string()
        };
        match self {
            Resource::Gpu => format!("{} GPU{}", number(1000.0), if amount == 1000 { "" } else { "s" }),
            Resource::GpuMemory => format!("{} GiB of device memory", number(1024.0)),
            Resource::Cpu => format!("{} CPU{}", number(1000.0), if amount == 1000 { "" } else { "s" }),
            Resource::Memory => format!("{} GiB of memory", number(1024.0)),
            Resource::GpuUnits => format!("{} unit{}", number(1000.0), if amount == 1000 { "" } else { "s" }),
        }
    }
}

pub(super) const RESOURCES: usize = 5;

/// An amount of each resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Amounts([u64; RESOURCES]);

impl Amounts {
    pub const ZERO: Amounts = Amounts([0; RESOURCES]);
    pub const UNLIMITED: Amounts = Amounts([u64::MAX; RESOURCES]);

    /// What `tasks` tasks of this request take.
    pub fn of(request: &Request, tasks: u32) -> Amounts {
        let gpus = u64::from(request.gpus);
        Amounts([
            gpus * u64::from(request.gpu_milli),
            gpus * u64::from(request.gpu_memory_mib),
            u64::from(request.cpu_milli),
            u64::from(request.memory_mib),
            gpus * u64::from(request.gpu_units_milli),
        ])
        .times(tasks)
    }

    fn times(self, factor: u32) -> Amounts {
        Amounts(self.0.map(|amount| amount * u64::from(factor)))
    }

    /// The smaller of both, resource by resource.
    pub fn min(self, other: Amounts) -> Amounts {
        Amounts(std::array::from_fn(|i| self.0[i].min(other.0[i])))
    }

    /// The larger of both, resource by resource.
    pub fn max(self, other: Amounts) -> Amounts {
        Amounts(std::array::from_fn(|i| self.0[i].max(other.0[i])))
    }

    /// The first resource of which `self` has more than `bound`.
    pub fn exceeds(&self, bound: &Amounts) -> Option<Resource> {
        Resource::ALL.into_iter().find(|&resource| self[resource] > bound[resource])
    }
}

impl Index<Resource> for Amounts {
    type Output = u64;
    fn index(&self, resource: Resource) -> &u64 {
        &self.0[resource as usize]
    }
}

impl IndexMut<Resource> for Amounts {
    fn index_mut(&mut self, resource: Resource) -> &mut u64 {
        &mut self.0[resource as usize]
    }
}

impl AddAssign for Amounts {
    fn add_assign(&mut self, other: Amounts) {
        for (sum, amount) in self.0.iter_mut().zip(other.0) {
            *sum += amount;
        }
    }
}

impl SubAssign for Amounts {
    /// Panics where less would remain than nothing: accounts that do not balance are a bug.
    fn sub_assign(&mut self, other: Amounts) {
        for (sum, amount) in self.0.iter_mut().zip(other.0) {
            *sum = sum.checked_sub(amount).expect("no more is given back than was taken");
        }
    }
}
