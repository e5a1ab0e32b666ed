//! Descriptors: numbered attributes in memory that the caller may own (cuBLAS 3.3).

use std::ffi::c_void;
use std::ops::Range;

use crate::abi::{Element, Outcome, Status};

/// An attribute's number and its bytes.
type Attribute = (u32, usize);

/// A descriptor has its attributes one behind the other with nothing between them, so that it fits
/// into the memory that the headers of earlier releases give it.
pub(super) trait Descriptor: Sized + Copy {
    /// The attributes in the order in which they lie in memory.
    const ATTRIBUTES: &'static [Attribute];

    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Where an attribute's bytes are, if the descriptor has it.
    fn place(attribute: u32) -> Option<Range<usize>> {
        let at = Self::ATTRIBUTES.iter().position(|(number, _)| *number == attribute)?;
        let start = Self::ATTRIBUTES[..at].iter().map(|(_, size)| size).sum();
        Some(start..start + Self::ATTRIBUTES[at].1)
    }

    fn value(&self, attribute: u32) -> u64 {
        let mut value = [0; 8];
        if let Some(place) = Self::place(attribute) {
            value[..place.len()].copy_from_slice(&self.bytes()[place]);
        }
        u64::from_le_bytes(value)
    }

    /// An attribute of 32 bits.
    fn number(&self, attribute: u32) -> i32 {
        self.value(attribute) as u32 as i32
    }

    fn with(mut self, attribute: u32, value: u64) -> Self {
        if let Some(place) = Self::place(attribute) {
            let size = place.len();
            self.bytes_mut()[place].copy_from_slice(&value.to_le_bytes()[..size]);
        }
        self
    }
}

/// Sets an attribute to the value at an address.
///
/// # Safety
/// Both addresses are null or those of a descriptor and of as many bytes.
pub(super) unsafe fn set<D: Descriptor>(
    descriptor: *mut D,
    attribute: u32,
    value: *const c_void,
    bytes: usize,
) -> Outcome {
    let place = D::place(attribute).ok_or(Status::NOT_SUPPORTED)?;
    if descriptor.is_null() || value.is_null() || bytes != place.len() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the caller's promise; it may have placed the descriptor anywhere. The value has as
    // many bytes as the attribute.
    unsafe {
        let mut new = descriptor.read_unaligned();
        let to = &mut new.bytes_mut()[place];
        std::ptr::copy_nonoverlapping(value.cast::<u8>(), to.as_mut_ptr(), to.len());
        descriptor.write_unaligned(new);
    }
    Ok(())
}

/// Gives an attribute, and its size if the caller asks for that.
///
/// # Safety
/// The addresses are null or those of a descriptor, of as many bytes, and of a place for a size.
pub(super) unsafe fn get<D: Descriptor>(
    descriptor: *const D,
    attribute: u32,
    value: *mut c_void,
    bytes: usize,
    written: *mut usize,
) -> Outcome {
    let place = D::place(attribute).ok_or(Status::NOT_SUPPORTED)?;
    let size = place.len();
    if descriptor.is_null() || (bytes == 0 && written.is_null()) {
        return Err(Status::INVALID_VALUE);
    }
    if !written.is_null() {
        // SAFETY: the caller's promise.
        unsafe { written.write(size) };
    }
    if bytes == 0 {
        return Ok(());
    }
    if value.is_null() || bytes != size {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the caller's promise; the value's place has as many bytes as the attribute.
    unsafe {
        let descriptor = descriptor.read_unaligned();
        let from = &descriptor.bytes()[place];
        std::ptr::copy_nonoverlapping(from.as_ptr(), value.cast::<u8>(), size);
    }
    Ok(())
}

/// Declares a descriptor.
macro_rules! descriptor {
    ($(#[$about:meta])* $name:ident: $($(#[$note:meta])* $attribute:ident = $number:literal, $bytes:literal;)*) => {
        $(#[$about])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $name([u8; 0 $(+ $bytes)*]);

        #[allow(dead_code, reason = "attributes without effect are kept for the caller alone")]
        impl $name {
            $($(#[$note])* pub(super) const $attribute: u32 = $number;)*
            const EMPTY: $name = $name([0; 0 $(+ $bytes)*]);
        }

        impl Descriptor for $name {
            const ATTRIBUTES: &'static [Attribute] = &[$(($number, $bytes)),*];

            fn bytes(&self) -> &[u8] {
                &self.0
            }

            fn bytes_mut(&mut self) -> &mut [u8] {
                &mut self.0
            }
        }
    };
}

descriptor! {
    /// A matrix or a batch of them (`cublasLtMatrixLayout_t`).
    MatrixLayout:
    TYPE = 0, 4;
    /// By columns (0) or by rows (1).
    ORDER = 1, 4;
    ROWS = 2, 8;
    COLUMNS = 3, 8;
    LEADING = 4, 8;
    BATCH = 5, 4;
    STRIDE = 6, 8;
    PLANE = 7, 8;
}

descriptor! {
    /// A product (`cublasLtMatmulDesc_t`).
    MatmulDescriptor:
    COMPUTE = 0, 4;
    SCALE = 1, 4;
    POINTER_MODE = 2, 4;
    TRANSPOSE_A = 3, 4;
    TRANSPOSE_B = 4, 4;
    TRANSPOSE_C = 5, 4;
    FILL_MODE = 6, 4;
    EPILOGUE = 7, 4;
    BIAS = 8, 8;
    BIAS_STRIDE = 10, 8;
    AUXILIARY = 11, 8;
    AUXILIARY_LEADING = 12, 8;
    AUXILIARY_STRIDE = 13, 8;
    ALPHA_STRIDE = 14, 8;
    SM_COUNT = 15, 4;
    A_SCALE = 17, 8;
    B_SCALE = 18, 8;
    C_SCALE = 19, 8;
    D_SCALE = 20, 8;
    D_MAXIMUM = 21, 8;
    AUXILIARY_TYPE = 22, 4;
    AUXILIARY_SCALE = 23, 8;
    AUXILIARY_MAXIMUM = 24, 8;
    FAST_ACCUMULATION = 25, 1;
    BIAS_TYPE = 26, 4;
}

descriptor! {
    /// What the search for algorithms prefers (`cublasLtMatmulPreference_t`). There is one
    /// algorithm, which needs no workspace, so all are met.
    Preference:
    SEARCH_MODE = 0, 4;
    WORKSPACE = 1, 8;
    REDUCTIONS = 3, 4;
    ALIGNMENT_A = 5, 4;
    ALIGNMENT_B = 6, 4;
    ALIGNMENT_C = 7, 4;
    ALIGNMENT_D = 8, 4;
    WAVES = 9, 4;
    IMPLEMENTATIONS = 10, 8;
}

impl Preference {
    pub(super) fn new() -> Preference {
        Preference::EMPTY
    }
}

/// `CUBLASLT_EPILOGUE_DEFAULT`.
pub(super) const NO_EPILOGUE: u64 = 1;

/// `CUBLAS_FILL_MODE_FULL`.
pub(super) const WHOLE: u64 = 2;

/// A type of `-1`: that of the result.
pub(super) const TYPE_OF_RESULT: i32 = -1;

impl MatmulDescriptor {
    pub(super) fn new(compute: i32, scale: i32) -> MatmulDescriptor {
        MatmulDescriptor::EMPTY
            .with(Self::COMPUTE, u64::from(compute as u32))
            .with(Self::SCALE, u64::from(scale as u32))
            .with(Self::FILL_MODE, WHOLE)
            .with(Self::EPILOGUE, NO_EPILOGUE)
            .with(Self::BIAS_TYPE, u64::from(TYPE_OF_RESULT as u32))
            .with(Self::AUXILIARY_TYPE, u64::from(TYPE_OF_RESULT as u32))
    }
}

impl MatrixLayout {
    pub(super) fn new(element: i32, rows: u64, columns: u64, leading: i64) -> MatrixLayout {
        MatrixLayout::EMPTY
            .with(Self::TYPE, u64::from(element as u32))
            .with(Self::ROWS, rows)
            .with(Self::COLUMNS, columns)
            .with(Self::LEADING, leading as u64)
            .with(Self::BATCH, 1)
    }

    pub(super) fn element(&self) -> Outcome<Element> {
        Element::parse(self.number(Self::TYPE)).map_err(|_| Status::NOT_SUPPORTED)
    }

    pub(super) fn sizes(&self) -> Outcome<[i64; 2]> {
        let size = |attribute| i64::try_from(self.value(attribute)).map_err(|_| Status::INVALID_VALUE);
        Ok([size(Self::ROWS)?, size(Self::COLUMNS)?])
    }

    /// Whether the matrix is stored by rows; none of cuBLASLt's other orders is built.
    pub(super) fn is_by_rows(&self) -> Outcome<bool> {
        match self.number(Self::ORDER) {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Status::NOT_SUPPORTED),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_is_what_was_set_and_wrong_sizes_are_refused() {
        let mut layout = MatrixLayout::new(0, 3, 4, 5);
        let (value, mut found, mut size) = (-7_i64, 0_i64, 0_usize);
        let (from, to) = (std::ptr::from_ref(&value).cast(), std::ptr::from_mut(&mut found).cast());
        let layout = std::ptr::from_mut(&mut layout);
        // SAFETY: all places are on the stack and of the sizes that are given.
        unsafe {
            assert_eq!(set(layout, MatrixLayout::STRIDE, from, 8), Ok(()));
            assert_eq!(set(layout, MatrixLayout::STRIDE, from, 4), Err(Status::INVALID_VALUE));
            assert_eq!(set(layout, 99, from, 8), Err(Status::NOT_SUPPORTED));
            assert_eq!(get(layout, MatrixLayout::STRIDE, to, 8, &mut size), Ok(()));
            assert_eq!(get(layout, MatrixLayout::STRIDE, to, 4, &mut size), Err(Status::INVALID_VALUE));
            assert_eq!((*layout).sizes(), Ok([3, 4]));
        }
        assert_eq!((found, size), (-7, 8));
    }

    #[test]
    fn attributes_lie_apart() {
        let descriptor =
            MatmulDescriptor::ATTRIBUTES.iter().fold(MatmulDescriptor::EMPTY, |descriptor, &(number, _)| {
                descriptor.with(number, u64::from(number) * 0x0101_0101_0101_0101)
            });
        for &(number, size) in MatmulDescriptor::ATTRIBUTES {
            let repeated = u64::from(number) * 0x0101_0101_0101_0101;
            assert_eq!(descriptor.value(number), repeated >> (64 - 8 * size), "{number}");
        }
    }

    #[test]
    fn descriptors_fit_into_the_memory_that_earlier_headers_give_them() {
        assert!(size_of::<MatrixLayout>() <= 8 * 8);
        assert!(size_of::<MatmulDescriptor>() <= 23 * 8);
        assert!(size_of::<Preference>() <= 8 * 8);
    }
}
