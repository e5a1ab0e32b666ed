//! Numbers that the API defines. A driver may take any other for something of its own, so it is to
//! see none; the client gets `CUDA_ERROR_INVALID_VALUE`, which is what a driver answers where it
//! checks.

use sluice_cuda::{
    CUfunction_attribute, CUjit_option, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue,
    CUlimit, CUresult,
};
use sluice_wire::{DevicePtr, Dim, JitOption, Pitched};

/// Most attributes of a launch; CUDA 13 defines fewer kinds.
const ATTRIBUTES_MAX: usize = 64;
/// The last launch attribute that CUDA 13 defines.
const ATTRIBUTE_LAST: u32 = 18;
/// Bytes of a kernel's parameters at most (CUDA C++ Programming Guide, Function Parameters).
pub(crate) const PARAMETER_BYTES_MAX: usize = 32_764;
/// Limits of every device (CUDA C++ Programming Guide, Technical Specifications per Compute
/// Capability): blocks of a grid, threads of a block in each direction, and threads of a block.
const GRID_MAX: Dim = [i32::MAX as u32, 65_535, 65_535];
const BLOCK_MAX: Dim = [1024, 1024, 64];
const THREADS_MAX: u32 = 1024;

fn defined(is_so: bool) -> Result<(), CUresult> {
    if is_so { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
}

/// Refuses bits other than these.
pub(crate) fn bits(value: u64, bits: u64) -> Result<(), CUresult> {
    defined(value & !bits == 0)
}

pub(crate) fn one_of<T: PartialEq>(value: T, values: &[T]) -> Result<(), CUresult> {
    defined(values.contains(&value))
}

/// The address, if a word of this number of bytes can lie there.
pub(crate) fn aligned(address: DevicePtr, bytes: u64) -> Result<DevicePtr, CUresult> {
    defined(address.0.is_multiple_of(bytes)).map(|()| address)
}

pub(crate) fn limit(limit: CUlimit) -> Result<(), CUresult> {
    defined(limit < CUlimit::MAX)
}

/// An attribute that programs set; the others describe the code.
pub(crate) fn settable(attribute: CUfunction_attribute) -> Result<(), CUresult> {
    use CUfunction_attribute as A;
    let settable = [
        A::MAX_DYNAMIC_SHARED_SIZE_BYTES,
        A::PREFERRED_SHARED_MEMORY_CARVEOUT,
        A::REQUIRED_CLUSTER_WIDTH,
        A::REQUIRED_CLUSTER_HEIGHT,
        A::REQUIRED_CLUSTER_DEPTH,
        A::NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
        A::CLUSTER_SCHEDULING_POLICY_PREFERENCE,
    ];
    one_of(attribute, &settable)
}

/// Options of a compiler that are plain numbers; the others are addresses, or say where the driver
/// writes.
pub(crate) fn jit_options(options: &[JitOption]) -> Result<(), CUresult> {
    use CUjit_option as O;
    let known = [
        O::MAX_REGISTERS,
        O::OPTIMIZATION_LEVEL,
        O::GENERATE_DEBUG_INFO,
        O::LOG_VERBOSE,
        O::GENERATE_LINE_INFO,
        O::CACHE_MODE,
        O::MIN_CTA_PER_SM,
        O::MAX_THREADS_PER_BLOCK,
        O::OVERRIDE_DIRECTIVE_VALUES,
    ];
    let is_first = |i: usize| !options[..i].iter().any(|other| other.option == options[i].option);
    let is_known = |i: usize| known.contains(&options[i].option) && is_first(i);
    defined((0..options.len()).all(is_known))
}

/// A grid and a block that some device has room for.
pub(crate) fn shape(grid: Dim, block: Dim) -> Result<(), CUresult> {
    let within = |size: Dim, most: Dim| size.into_iter().zip(most).all(|(n, most)| n != 0 && n <= most);
    // The product cannot overflow once the factors are within their limits.
    defined(
        within(grid, GRID_MAX)
            && within(block, BLOCK_MAX)
            && block.into_iter().product::<u32>() <= THREADS_MAX,
    )
}

pub(crate) fn attribute_id(id: u32) -> Result<(), CUresult> {
    defined(id <= ATTRIBUTE_LAST)
}

/// The attributes, if none of them means anything but a number, and that number something.
pub(crate) fn plain(attributes: Vec<CUlaunchAttribute>) -> Result<Vec<CUlaunchAttribute>, CUresult> {
    defined(attributes.len() <= ATTRIBUTES_MAX)?;
    for attribute in &attributes {
        plain_value(attribute.id, &attribute.value)?;
    }
    Ok(attributes)
}

/// One of them.
pub(crate) fn plain_value(id: CUlaunchAttributeID, value: &CUlaunchAttributeValue) -> Result<(), CUresult> {
    use CUlaunchAttributeID as A;
    /// Blocks of a cluster in one direction, at most.
    const CLUSTER_MAX: u32 = 16;
    if !is_plain(id) {
        return Err(CUresult::NOT_SUPPORTED);
    }
    match id {
        A::MEM_SYNC_DOMAIN => defined((0..=1).contains(&value.number())),
        A::SYNCHRONIZATION_POLICY => defined((1..=4).contains(&value.number())),
        A::PREFERRED_SHARED_MEMORY_CARVEOUT => defined((-1..=100).contains(&value.number())),
        A::CLUSTER_DIMENSION | A::PREFERRED_CLUSTER_DIMENSION => {
            // A result of its own: cuBLASLt tries one size after the other until it gets this.
            let fits = value.dimension().into_iter().all(|n| (1..=CLUSTER_MAX).contains(&n));
            if fits { Ok(()) } else { Err(CUresult::INVALID_CLUSTER_SIZE) }
        }
        _ => Ok(()),
    }
}

/// Launch attributes that are numbers, not handles or addresses of the client.
pub(crate) fn is_plain(attribute: CUlaunchAttributeID) -> bool {
    use CUlaunchAttributeID as A;
    matches!(
        attribute,
        A::IGNORE
            | A::COOPERATIVE
            | A::SYNCHRONIZATION_POLICY
            | A::CLUSTER_DIMENSION
            | A::CLUSTER_SCHEDULING_POLICY_PREFERENCE
            | A::PROGRAMMATIC_STREAM_SERIALIZATION
            | A::PRIORITY
            | A::MEM_SYNC_DOMAIN
            | A::MEM_SYNC_DOMAIN_MAP
            | A::PREFERRED_CLUSTER_DIMENSION
            | A::PREFERRED_SHARED_MEMORY_CARVEOUT
    )
}

/// Bytes from the first to the last of a box, whose rows and slices do not overlap; a box that
/// overflows is larger than any range.
pub(crate) fn span(operand: &Pitched, [width, height, depth]: [u64; 3]) -> Result<u64, CUresult> {
    let has_rows = height > 1 || depth > 1;
    defined((!has_rows || operand.pitch >= width) && (depth <= 1 || operand.height >= height))?;
    let rows =
        depth.saturating_sub(1).saturating_mul(operand.height).saturating_add(height.saturating_sub(1));
    Ok(rows.saturating_mul(operand.pitch).saturating_add(width))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_span_of_a_box_never_wraps() {
        let operand = |pitch, height| Pitched { start: DevicePtr(0), pitch, height };
        assert_eq!(span(&operand(100, 10), [10, 1, 1]), Ok(10));
        assert_eq!(span(&operand(100, 10), [10, 3, 2]), Ok(12 * 100 + 10));
        for huge in [u64::MAX, u64::MAX / 2, 1 << 33] {
            assert!(span(&operand(huge, huge), [huge, huge, huge]).unwrap() >= u64::MAX - 1);
        }
    }

    #[test]
    fn rows_and_slices_that_overlap_are_refused() {
        let operand = |pitch, height| Pitched { start: DevicePtr(0), pitch, height };
        assert_eq!(span(&operand(0, 0), [10, 1, 1]), Ok(10));
        assert_eq!(span(&operand(9, 0), [10, 2, 1]), Err(CUresult::INVALID_VALUE));
        assert_eq!(span(&operand(10, 1), [10, 2, 2]), Err(CUresult::INVALID_VALUE));
    }

    #[test]
    fn compilers_get_each_number_once() {
        let option = |option, value| JitOption { option, value };
        let (registers, level) =
            (option(CUjit_option::MAX_REGISTERS, 32), option(CUjit_option::OPTIMIZATION_LEVEL, u32::MAX));
        assert_eq!(jit_options(&[]), Ok(()));
        assert_eq!(jit_options(&[registers.clone(), level.clone()]), Ok(()));
        for wrong in [CUjit_option::INFO_LOG_BUFFER, CUjit_option::WALL_TIME, CUjit_option(1 << 31)] {
            assert_eq!(jit_options(&[registers.clone(), option(wrong, 8)]), Err(CUresult::INVALID_VALUE));
        }
        assert_eq!(jit_options(&[level.clone(), registers, level]), Err(CUresult::INVALID_VALUE));
    }

    #[test]
    fn blocks_have_as_many_threads_as_any_device_has_room_for() {
        for (grid, block, fits) in [
            ([1, 1, 1], [1024, 1, 1], true),
            ([i32::MAX as u32, 65_535, 65_535], [16, 16, 4], true),
            ([1, 1, 1], [1024, 2, 1], false),
            ([1, 1, 1], [1 << 22, 1 << 21, 1 << 21], false),
            ([1, 0, 1], [32, 1, 1], false),
            ([1, 65_536, 1], [32, 1, 1], false),
        ] {
            assert_eq!(shape(grid, block).is_ok(), fits, "{grid:?} {block:?}");
        }
    }

    #[test]
    fn attributes_are_numbers_that_mean_something() {
        use CUlaunchAttributeID as A;
        let value = |number: u32| {
            let mut words = [0; 16];
            words[0] = number;
            CUlaunchAttributeValue { words }
        };
        let cluster = |dimension: [u32; 3]| {
            let mut words = [0; 16];
            words[..3].copy_from_slice(&dimension);
            CUlaunchAttributeValue { words }
        };
        assert_eq!(plain_value(A::PREFERRED_SHARED_MEMORY_CARVEOUT, &value(u32::MAX)), Ok(()));
        assert_eq!(plain_value(A::SYNCHRONIZATION_POLICY, &value(0)), Err(CUresult::INVALID_VALUE));
        assert_eq!(plain_value(A::CLUSTER_DIMENSION, &cluster([16, 1, 1])), Ok(()));
        for wrong in [[17, 1, 1], [2, 0, 1]] {
            assert_eq!(
                plain_value(A::CLUSTER_DIMENSION, &cluster(wrong)),
                Err(CUresult::INVALID_CLUSTER_SIZE)
            );
        }
        assert_eq!(plain_value(A::PROGRAMMATIC_EVENT, &value(1)), Err(CUresult::NOT_SUPPORTED));
    }
}
