//! The transform of as many numbers as a radix has, in registers.

use std::f64::consts::PI;

use sluice_library_base::writer::Writer;

use super::number::Complex;
use crate::abi::{Direction, Precision};

/// Transforms a power of two numbers, or an odd number of them.
pub(super) fn transform(
    w: &mut Writer,
    precision: Precision,
    direction: Direction,
    numbers: &[Complex],
) -> Vec<Complex> {
    match numbers.len() {
        1 => numbers.to_vec(),
        length if length.is_multiple_of(2) => by_halves(w, precision, direction, numbers),
        _ => odd(w, precision, direction, numbers),
    }
}

fn by_halves(
    w: &mut Writer,
    precision: Precision,
    direction: Direction,
    numbers: &[Complex],
) -> Vec<Complex> {
    let half = numbers.len() / 2;
    let mut part = |first: usize| {
        let numbers: Vec<Complex> = numbers.iter().skip(first).step_by(2).copied().collect();
        transform(w, precision, direction, &numbers)
    };
    let (even, odd) = (part(0), part(1));
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for k in 0..half {
        let turned = turn(w, precision, direction, odd[k], k, 2 * half);
        first.push(precision.add(w, even[k], turned));
        second.push(precision.subtract(w, even[k], turned));
    }
    first.extend(second);
    first
}

/// A number times `exp(-2 pi i part / whole)`, or its conjugate in the inverse transform.
fn turn(
    w: &mut Writer,
    precision: Precision,
    direction: Direction,
    number: Complex,
    part: usize,
    whole: usize,
) -> Complex {
    if part == 0 {
        return number;
    }
    if 4 * part == whole {
        return precision.quarter(w, direction, number);
    }
    let (sine, cosine) = (2.0 * PI * part as f64 / whole as f64).sin_cos();
    let sine = if direction == Direction::Forward { -sine } else { sine };
    let factor = Complex(precision.constant(w, cosine), precision.constant(w, sine));
    precision.multiply(w, number, factor)
}

/// Numbers at the same distance from the first one have the same cosines and opposite sines, so
/// their sums and differences are taken first.
fn odd(w: &mut Writer, precision: Precision, direction: Direction, numbers: &[Complex]) -> Vec<Complex> {
    let length = numbers.len();
    let half = length / 2;
    let pairs: Vec<[Complex; 2]> = (1..=half)
        .map(|j| {
            let (a, b) = (numbers[j], numbers[length - j]);
            [precision.add(w, a, b), precision.subtract(w, a, b)]
        })
        .collect();
    let mut results = vec![numbers[0]; length];
    for [sum, _] in &pairs {
        results[0] = precision.add(w, results[0], *sum);
    }
    for k in 1..=half {
        let mut cosines = numbers[0];
        let mut sines: Option<Complex> = None;
        for (j, [sum, difference]) in pairs.iter().enumerate() {
            let (sine, cosine) = (2.0 * PI * ((j + 1) * k % length) as f64 / length as f64).sin_cos();
            let (sine, cosine) = (precision.constant(w, sine), precision.constant(w, cosine));
            cosines = precision.scaled_sum(w, *sum, cosine, cosines);
            sines = Some(match sines {
                None => precision.scale(w, *difference, sine),
                Some(sines) => precision.scaled_sum(w, *difference, sine, sines),
            });
        }
        // A radix of 1 has no pairs and does not come here.
        let Some(sines) = sines else { continue };
        let turned = precision.quarter(w, direction, sines);
        results[k] = precision.add(w, cosines, turned);
        results[length - k] = precision.subtract(w, cosines, turned);
    }
    results
}
