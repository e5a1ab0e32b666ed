//! Kernel parameters: from the two forms in which programs pass them to the one block that kernels
//! read.

use std::ffi::c_void;

use sluice_cuda::*;

/// Where the parameters of a kernel lie in its block, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Offset and size of each parameter, in order.
    pub(crate) places: Vec<(u32, u32)>,
    /// Size of the whole block.
    pub(crate) bytes: usize,
}

impl Layout {
    /// From offset and size of each parameter; `None` if they are more than a kernel can have.
    pub(crate) fn new(places: Vec<(u32, u32)>) -> Option<Layout> {
        /// Since CUDA 12.1; before, it was 4096.
        const BYTES_MAX: usize = 32764;
        let bytes = places.iter().map(|&(offset, size)| offset as usize + size as usize).max().unwrap_or(0);
        (bytes <= BYTES_MAX).then_some(Layout { places, bytes })
    }

    /// Appends the parameter block to `block`.
    ///
    /// # Safety
    /// `values` and `extra` are what a program may pass to `cuLaunchKernel` for this kernel.
    pub(crate) unsafe fn gather(
        &self,
        values: *const *mut c_void,
        extra: *const *mut c_void,
        block: &mut Vec<u8>,
    ) -> Result<(), CUresult> {
        match (values.is_null(), extra.is_null()) {
            (false, false) => Err(CUresult::INVALID_VALUE),
            // SAFETY: the caller vouches for both.
            (false, true) => unsafe { self.gather_values(values, block) },
            // SAFETY: as above.
            (true, false) => unsafe { self.gather_extra(extra, block) },
            (true, true) if self.places.is_empty() => Ok(()),
            (true, true) => Err(CUresult::INVALID_VALUE),
        }
    }

    /// `kernelParams`: one pointer per parameter.
    unsafe fn gather_values(&self, values: *const *mut c_void, block: &mut Vec<u8>) -> Result<(), CUresult> {
        let base = block.len();
        block.resize(base + self.bytes, 0);
        for (i, &(offset, size)) in self.places.iter().enumerate() {
            // SAFETY: the program passes as many pointers as the kernel has parameters, each to a
            // value of its size; the block has room for every parameter since `bytes` is the
            // largest end of any.
            unsafe {
                let value = values.add(i).read_unaligned();
                if value.is_null() {
                    block.truncate(base);
                    return Err(CUresult::INVALID_VALUE);
                }
                let place = block.as_mut_ptr().add(base + offset as usize);
                std::ptr::copy_nonoverlapping(value.cast::<u8>(), place, size as usize);
            }
        }
        Ok(())
    }

    /// `extra`: a list of names and values that holds the block's address and size. It may be
    /// longer than the kernel's parameters, or shorter, which says nothing about the rest: the
    /// kernels of NCCL have 4 KiB of them, and get as much as a launch needs.
    unsafe fn gather_extra(&self, extra: *const *mut c_void, block: &mut Vec<u8>) -> Result<(), CUresult> {
        /// More entries than CUDA has names for: the list has no end.
        const ENTRIES_MAX: usize = 8;
        let (mut buffer, mut bytes) = (std::ptr::null::<u8>(), None);
        for i in 0..ENTRIES_MAX {
            // SAFETY: the program ends the list, and until then each name has a value behind it.
            let name = unsafe { extra.add(2 * i).read_unaligned() } as usize;
            if name == CU_LAUNCH_PARAM_END {
                break;
            }
            // SAFETY: as above.
            let value = unsafe { extra.add(2 * i + 1).read_unaligned() };
            match name {
                CU_LAUNCH_PARAM_BUFFER_POINTER => buffer = value.cast(),
                CU_LAUNCH_PARAM_BUFFER_SIZE if !value.is_null() => {
                    // SAFETY: this entry's value is the address of a size.
                    bytes = Some(unsafe { value.cast::<usize>().read_unaligned() });
                }
                _ => return Err(CUresult::INVALID_VALUE),
            }
        }
        let bytes = bytes.ok_or(CUresult::INVALID_VALUE)?;
        if buffer.is_null() && bytes > 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let base = block.len();
        block.resize(base + self.bytes, 0);
        let given = bytes.min(self.bytes);
        if given > 0 {
            // SAFETY: the program's buffer has that many bytes, and so has the block, which has
            // just been made.
            unsafe { std::ptr::copy_nonoverlapping(buffer, block.as_mut_ptr().add(base), given) };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        Layout::new(vec![(0, 1), (8, 8)]).unwrap()
    }

    #[test]
    fn values_go_to_their_offsets() {
        let (mut first, mut second) = (7_u8, 0x0102_0304_0506_0708_u64);
        let values: [*mut c_void; 2] = [(&raw mut first).cast(), (&raw mut second).cast()];
        let mut block = vec![0xff];
        // SAFETY: two pointers to values of the layout's sizes.
        unsafe { layout().gather(values.as_ptr(), std::ptr::null(), &mut block) }.unwrap();
        assert_eq!(block, [0xff, 7, 0, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1]);
    }

    #[test]
    fn extra_gives_the_block_itself() {
        let buffer: [u8; 16] = std::array::from_fn(|i| i as u8);
        let check = |mut bytes: usize| {
            let extra: [*mut c_void; 5] = [
                std::ptr::without_provenance_mut(CU_LAUNCH_PARAM_BUFFER_POINTER),
                buffer.as_ptr().cast_mut().cast(),
                std::ptr::without_provenance_mut(CU_LAUNCH_PARAM_BUFFER_SIZE),
                (&raw mut bytes).cast(),
                std::ptr::without_provenance_mut(CU_LAUNCH_PARAM_END),
            ];
            let mut block = Vec::new();
            // SAFETY: a list as CUDA documents it.
            unsafe { layout().gather(std::ptr::null(), extra.as_ptr(), &mut block) }.map(|()| block)
        };
        assert_eq!(check(16).unwrap(), buffer);
        let mut shorter = buffer;
        shorter[15] = 0;
        assert_eq!(check(15).unwrap(), shorter);
        assert_eq!(check(0).unwrap(), [0; 16]);
    }

    #[test]
    fn missing_parameters_are_refused() {
        let mut block = Vec::new();
        // SAFETY: null pointers are checked.
        let result = unsafe { layout().gather(std::ptr::null(), std::ptr::null(), &mut block) };
        assert_eq!(result, Err(CUresult::INVALID_VALUE));
    }
}
