//! One dimension of a transform: how its length is split, and the tables that its kernels read.

use std::f64::consts::PI;

use crate::abi::{Outcome, Precision, Status};

/// The radices that have kernels, in the order in which they are taken out of a length.
const RADICES: [u32; 8] = [8, 4, 2, 3, 5, 7, 11, 13];

/// The longest line in the work area, which bounds the memory that tables take on the host: at
/// most 16 GiB for a moment. The limit is this library's own.
const LINE_MAX: u64 = 1 << 28;

/// A complex number on the host.
pub(crate) type Number = [f64; 2];

/// How a dimension is transformed.
#[derive(Debug, PartialEq)]
pub(crate) struct Axis {
    pub(crate) length: u64,
    /// Passes over lines of the length, or over longer ones where a convolution is needed.
    pub(crate) passes: Passes,
}

/// The Stockham passes over lines of a length.
#[derive(Debug, PartialEq)]
pub(crate) struct Passes {
    pub(crate) length: u64,
    pub(crate) radices: Vec<u32>,
}

/// The tables of Bluestein's algorithm.
pub(crate) struct Convolution {
    /// `exp(-pi i k^2 / n)` for each element.
    pub(crate) chirp: Vec<Number>,
    /// The transform of the inverse chirp, divided by the length of the longer line.
    pub(crate) filter: Vec<Number>,
}

/// `exp(-2 pi i numerator / denominator)`.
fn root(numerator: u64, denominator: u64) -> Number {
    // The quarter is taken off exactly; the sine of a large angle would be less exact.
    let quarters = 4 * (numerator % denominator);
    let (quarter, rest) = (quarters / denominator, quarters % denominator);
    let (sine, cosine) = (PI / 2.0 * rest as f64 / denominator as f64).sin_cos();
    match quarter {
        0 => [cosine, -sine],
        1 => [-sine, -cosine],
        2 => [-cosine, sine],
        _ => [sine, cosine],
    }
}

/// The radices of a length, or none if it has another prime factor.
fn radices(length: u64) -> Option<Vec<u32>> {
    let (mut rest, mut radices) = (length, Vec::new());
    for radix in RADICES {
        while rest.is_multiple_of(u64::from(radix)) {
            rest /= u64::from(radix);
            radices.push(radix);
        }
    }
    (rest == 1).then_some(radices)
}

/// A table whose memory may be more than there is.
fn table(numbers: impl ExactSizeIterator<Item = Number>) -> Outcome<Vec<Number>> {
    let mut table = Vec::new();
    table.try_reserve_exact(numbers.len()).map_err(|_| Status::ALLOC_FAILED)?;
    table.extend(numbers);
    Ok(table)
}

impl Passes {
    /// `exp(-2 pi i k / length)` for each `k`.
    pub(crate) fn twiddles(&self) -> Outcome<Vec<Number>> {
        table((0..self.length as usize).map(|k| root(k as u64, self.length)))
    }
}

impl Axis {
    /// How a length is transformed, without its tables; a length whose lines would be too long is
    /// refused.
    pub(crate) fn new(length: u64) -> Outcome<Axis> {
        if length > LINE_MAX {
            return Err(Status::INVALID_SIZE);
        }
        if let Some(radices) = radices(length) {
            return Ok(Axis { length, passes: Passes { length, radices } });
        }
        let line = (2 * length).next_power_of_two();
        if line > LINE_MAX {
            return Err(Status::INVALID_SIZE);
        }
        // Powers of two are made of the radices.
        let radices = radices(line).unwrap_or_default();
        Ok(Axis { length, passes: Passes { length: line, radices } })
    }

    /// Whether the length has a large prime factor, so that its lines are longer.
    pub(crate) fn is_convolution(&self) -> bool {
        self.passes.length != self.length
    }

    /// The tables of a convolution, by the twiddles of its passes.
    pub(crate) fn convolution(&self, twiddles: &[Number]) -> Outcome<Convolution> {
        let (length, line) = (self.length, self.passes.length as usize);
        // k^2 counts modulo 2 n, where it is exact.
        let square = |k: u64| (u128::from(k) * u128::from(k) % u128::from(2 * length)) as u64;
        let chirp = table((0..length as usize).map(|k| root(square(k as u64), 2 * length)))?;
        let mut filter = table((0..line).map(|_| [0.0; 2]))?;
        for (k, [re, im]) in chirp.iter().enumerate() {
            filter[k] = [*re, -im];
            filter[(line - k) % line] = [*re, -im];
        }
        transform(&mut filter, twiddles);
        for part in filter.iter_mut().flatten() {
            *part /= line as f64;
        }
        Ok(Convolution { chirp, filter })
    }
}

/// Replaces a power of two numbers by their forward transform. There is a twiddle for each number.
fn transform(numbers: &mut [Number], twiddles: &[Number]) {
    let length = numbers.len();
    if length < 2 {
        return;
    }
    let unused_bits = usize::BITS - length.trailing_zeros();
    for at in 0..length {
        let partner = at.reverse_bits() >> unused_bits;
        if at < partner {
            numbers.swap(at, partner);
        }
    }
    let mut half = 1;
    while half < length {
        let step = length / (2 * half);
        for block in numbers.chunks_exact_mut(2 * half) {
            let (even, odd) = block.split_at_mut(half);
            for k in 0..half {
                let ([a, b], [c, d], [x, y]) = (even[k], odd[k], twiddles[k * step]);
                let (re, im) = (c * x - d * y, c * y + d * x);
                even[k] = [a + re, b + im];
                odd[k] = [a - re, b - im];
            }
        }
        half *= 2;
    }
}

/// The bytes of a table as the device has it.
pub(crate) fn bytes_of(table: &[Number], precision: Precision) -> Outcome<Vec<u8>> {
    let mut bytes = Vec::new();
    let size = table.len() * 2 * precision.bytes() as usize;
    bytes.try_reserve_exact(size).map_err(|_| Status::ALLOC_FAILED)?;
    let parts = table.iter().flatten();
    match precision {
        Precision::Float => bytes.extend(parts.flat_map(|&part| (part as f32).to_le_bytes())),
        Precision::Double => bytes.extend(parts.flat_map(|part| part.to_le_bytes())),
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_are_exact_at_the_quarters_and_close_elsewhere() {
        assert_eq!([0, 1, 2, 3].map(|k| root(k, 4)), [[1.0, 0.0], [0.0, -1.0], [-1.0, 0.0], [0.0, 1.0]]);
        for k in 0..1000 {
            let (sine, cosine) = (-2.0 * PI * k as f64 / 1000.0).sin_cos();
            let [re, im] = root(k, 1000);
            assert!((re - cosine).abs() < 1e-14 && (im - sine).abs() < 1e-14, "{k}");
        }
    }

    #[test]
    fn lengths_are_products_of_radices_or_convolutions() {
        for length in (1..150).chain([1001, 1009, 1024, 2187]) {
            let axis = Axis::new(length).expect("an axis");
            let line = axis.passes.radices.iter().map(|&radix| u64::from(radix)).product::<u64>();
            assert_eq!(line, axis.passes.length);
            assert_eq!(axis.is_convolution(), line != length);
            assert!(line == length || line >= 2 * length - 1, "{length}");
        }
    }

    #[test]
    fn lengths_whose_lines_are_too_long_are_refused() {
        assert!(Axis::new(LINE_MAX).is_ok());
        for length in [LINE_MAX / 2 + 1, LINE_MAX - 1, 2 * LINE_MAX, 1 << 40, u64::MAX] {
            assert_eq!(Axis::new(length), Err(Status::INVALID_SIZE), "{length}");
        }
    }

    #[test]
    fn a_table_that_no_memory_has_is_an_error() {
        let numbers = (0..isize::MAX as usize).map(|_| [0.0; 2]);
        assert_eq!(table(numbers), Err(Status::ALLOC_FAILED));
    }

    #[test]
    fn the_hosts_transform_is_the_definition() {
        let numbers: Vec<Number> = (0..16).map(|k| [f64::from(k * k % 7), f64::from(k % 5)]).collect();
        let twiddles: Vec<Number> = (0..16).map(|k| root(k, 16)).collect();
        let mut result = numbers.clone();
        transform(&mut result, &twiddles);
        for (k, [re, im]) in result.iter().enumerate() {
            let mut sum = [0.0; 2];
            for (n, [a, b]) in numbers.iter().enumerate() {
                let [x, y] = root((k * n) as u64, 16);
                sum = [sum[0] + a * x - b * y, sum[1] + a * y + b * x];
            }
            assert!((sum[0] - re).abs() < 1e-12 && (sum[1] - im).abs() < 1e-12, "{k}");
        }
    }
}
