//! Places of lanes on one axis of an image.

use sluice_ir::texture::{AddressMode, Axis, PlainRead};

use super::{Chunk, YES, each};

/// Beyond every axis, and a float of both sizes: coordinates are bounded by it before they become
/// integers.
pub(super) const BEYOND: u32 = 2 * PlainRead::SIZE_MAX;

/// Coordinates whose place on an axis that repeats is found in vectors are below this, so that the
/// quotient of two of them is off by one at most.
const REPEATED_MAX: f64 = (1_u64 << 31) as f64;

/// A coordinate is beyond what vectors can repeat.
pub(super) struct OutOfRange;

/// An element on the axis for each lane.
#[derive(Clone, Copy)]
pub(super) struct Places<const N: usize> {
    pub(super) at: Chunk<u32, N>,
    /// All ones where it is the element that the coordinate means, zero where that is beyond the
    /// edges and not an element.
    pub(super) inside: Chunk<u32, N>,
}

/// The elements on both sides of each lane's place, and the upper one's share.
#[derive(Clone, Copy)]
pub(super) struct Neighbours<const N: usize> {
    pub(super) lower: Places<N>,
    pub(super) upper: Places<N>,
    pub(super) weights: Chunk<f32, N>,
}

impl<const N: usize> Places<N> {
    /// The elements that coordinates lie in.
    #[inline(always)]
    pub(super) fn of_points(
        read: &PlainRead,
        axis: &Axis,
        words: &Chunk<u32, N>,
        active: u32,
    ) -> Result<Places<N>, OutOfRange> {
        if read.has_integer_coordinates {
            return Ok(Places::of_integers(axis, words));
        }
        if !read.is_normalized {
            return Ok(Places::of_floats(axis, words));
        }
        let scale = f64::from(axis.size);
        let wholes = each(|lane| (f64::from(f32::from_bits(words[lane])) * scale).floor());
        Places::of_wholes(axis, &wholes, active)
    }

    #[inline(always)]
    fn of_integers(axis: &Axis, words: &Chunk<u32, N>) -> Places<N> {
        let last = axis.size - 1;
        Places {
            at: each(|lane| words[lane].min(last)),
            // A negative number is a large one here.
            inside: each(|lane| if words[lane] <= last { YES } else { 0 }),
        }
    }

    /// Of coordinates that count elements, clamped or with a border.
    #[inline(always)]
    fn of_floats(axis: &Axis, words: &Chunk<u32, N>) -> Places<N> {
        let last = axis.size - 1;
        // Above zero, the integer below is what is left without the fraction. A NaN becomes zero.
        let wholes: Chunk<u32, N> = each(|lane| {
            let at = f32::from_bits(words[lane]);
            let at = if at > 0.0 { at } else { 0.0 };
            let at = if at < BEYOND as f32 { at } else { BEYOND as f32 };
            // SAFETY: a number from zero to a bound that fits.
            unsafe { at.to_int_unchecked::<i32>() as u32 }
        });
        let at = each(|lane| wholes[lane].min(last));
        if axis.mode != AddressMode::Border {
            return Places { at, inside: [YES; N] };
        }
        let inside = each(|lane| {
            let is_below = f32::from_bits(words[lane]) < 0.0;
            if !is_below & (wholes[lane] <= last) { YES } else { 0 }
        });
        Places { at, inside }
    }

    /// Of whole numbers of elements, whatever the mode. A NaN counts as zero.
    #[inline(always)]
    fn of_wholes(axis: &Axis, wholes: &Chunk<f64, N>, active: u32) -> Result<Places<N>, OutOfRange> {
        let size = f64::from(axis.size);
        let (at, inside) = match axis.mode {
            AddressMode::Clamp => (bounded(axis, wholes), [YES; N]),
            AddressMode::Border => {
                let is_outside = |whole: f64| (whole < 0.0) | (whole >= size);
                let inside = each(|lane| if is_outside(wholes[lane]) { 0 } else { YES });
                (bounded(axis, wholes), inside)
            }
            AddressMode::Wrap => (bounded(axis, &remainders(size, wholes, active)?), [YES; N]),
            AddressMode::Mirror => {
                let places = remainders(2.0 * size, wholes, active)?;
                let is_back = |at: f64| at >= size;
                let back = 2.0 * size - 1.0;
                let places =
                    each(|lane| if is_back(places[lane]) { back - places[lane] } else { places[lane] });
                (bounded(axis, &places), [YES; N])
            }
        };
        Ok(Places { at, inside })
    }
}

impl<const N: usize> Neighbours<N> {
    pub(super) const NONE: Neighbours<N> = {
        let none = Places { at: [0; N], inside: [0; N] };
        Neighbours { lower: none, upper: none, weights: [0.0; N] }
    };

    #[inline(always)]
    pub(super) fn of(
        read: &PlainRead,
        axis: &Axis,
        words: &Chunk<u32, N>,
        active: u32,
    ) -> Result<Neighbours<N>, OutOfRange> {
        let scale = if read.is_normalized { f64::from(axis.size) } else { 1.0 };
        let places: Chunk<f64, N> = each(|lane| f64::from(f32::from_bits(words[lane])) * scale - 0.5);
        let lower: Chunk<f64, N> = each(|lane| places[lane].floor());
        let upper = each(|lane| lower[lane] + 1.0);
        // Hardware keeps eight bits of the fraction. Of what is no number there is none.
        let weights = each(|lane| {
            let steps = ((places[lane] - lower[lane]) * 256.0).clamp(0.0, 256.0);
            ((steps + 0.5).floor().max(0.0) / 256.0) as f32
        });
        Ok(Neighbours {
            lower: Places::of_wholes(axis, &lower, active)?,
            upper: Places::of_wholes(axis, &upper, active)?,
            weights,
        })
    }
}

/// The nearest elements on the axis.
#[inline(always)]
fn bounded<const N: usize>(axis: &Axis, places: &Chunk<f64, N>) -> Chunk<u32, N> {
    let last = f64::from(axis.size - 1);
    each(|lane| {
        let at = if places[lane] > 0.0 { places[lane] } else { 0.0 };
        let at = if at < last { at } else { last };
        // SAFETY: a number from zero to a bound that fits.
        unsafe { at.to_int_unchecked::<i32>() as u32 }
    })
}

/// What is left of whole numbers when a period is taken off them as often as it goes.
#[inline(always)]
fn remainders<const N: usize>(
    period: f64,
    wholes: &Chunk<f64, N>,
    active: u32,
) -> Result<Chunk<f64, N>, OutOfRange> {
    let out: Chunk<u32, N> = each(|lane| u32::from(wholes[lane].abs() > REPEATED_MAX) & active >> lane & 1);
    if out != [0; N] {
        return Err(OutOfRange);
    }
    let reciprocal = 1.0 / period;
    Ok(each(|lane| {
        // The quotient may be off by one; the product is exact.
        let rest = wholes[lane] - (wholes[lane] * reciprocal).floor() * period;
        let rest = if rest < 0.0 { rest + period } else { rest };
        if rest >= period { rest - period } else { rest }
    }))
}
