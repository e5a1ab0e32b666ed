//! Plans: what is transformed, the layouts of input and output, work areas, tables.

use std::sync::PoisonError;

use sluice_library_base::driver::{DevicePtr, Driver, Stream};
use sluice_library_base::handles::Handles;

use crate::abi::{Form, Outcome, Status, Type};
use crate::axis::{Axis, Number, bytes_of};

/// The dimensions of a transform; those before the first one have the length 1.
pub(crate) const RANK_MAX: usize = 3;

/// The largest number of elements of a plan, in all transforms. Products of it and the bytes of a
/// number are far from overflowing.
const ELEMENTS_MAX: u64 = 1 << 40;

/// `cufftHandle`: the number of a plan.
pub(crate) type PlanId = i32;

/// Where the elements of an array are, counted in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// From one element to the next in each dimension, and from one transform to the next.
    pub(crate) steps: [u64; RANK_MAX + 1],
}

impl Layout {
    /// Arrays of these dimensions with nothing between them.
    pub(crate) fn packed([_, second, third]: [u64; RANK_MAX], first: u64) -> Layout {
        Layout { steps: [second * third, third, 1, first * second * third] }
    }
}

/// What `cufftMakePlanMany` says beyond the dimensions: the sizes of the arrays that the data is
/// part of, the elements from one to the next, and those from one transform to the next.
#[derive(Clone, Debug)]
pub(crate) struct Advanced {
    pub(crate) embedding: Vec<i64>,
    pub(crate) stride: i64,
    pub(crate) distance: i64,
}

/// What a plan transforms.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) kind: Type,
    pub(crate) dimensions: [u64; RANK_MAX],
    pub(crate) batch: u64,
    pub(crate) input: Layout,
    pub(crate) output: Layout,
    /// For the basic layout, that of real data whose place the complex data takes.
    pub(crate) in_place: Option<Layout>,
}

impl Shape {
    pub(crate) fn new(
        kind: i32,
        sizes: &[i64],
        advanced: Option<[Advanced; 2]>,
        batch: i64,
    ) -> Outcome<Shape> {
        let kind = Type::parse(kind)?;
        Shape::of_type(kind, sizes, advanced, batch)
    }

    pub(crate) fn of_type(
        kind: Type,
        sizes: &[i64],
        advanced: Option<[Advanced; 2]>,
        batch: i64,
    ) -> Outcome<Shape> {
        if sizes.is_empty() || sizes.len() > RANK_MAX {
            return Err(Status::INVALID_VALUE);
        }
        if batch < 1 || sizes.iter().any(|size| *size < 1) {
            return Err(Status::INVALID_SIZE);
        }
        let mut dimensions = [1; RANK_MAX];
        for (to, from) in dimensions.iter_mut().rev().zip(sizes.iter().rev()) {
            *to = *from as u64;
        }
        let elements = dimensions.iter().try_fold(batch as u64, |all, size| all.checked_mul(*size));
        if elements.is_none_or(|all| all > ELEMENTS_MAX) {
            return Err(Status::INVALID_SIZE);
        }
        let [first, second, last] = dimensions;
        let whole = Layout::packed(dimensions, first);
        let half = Layout::packed([first, second, last / 2 + 1], first);
        let padded = Layout::packed([first, second, 2 * (last / 2 + 1)], first);
        let (input, output) = match kind.form {
            Form::Complex => (whole, whole),
            Form::RealToComplex => (whole, half),
            Form::ComplexToReal => (half, whole),
        };
        let shape = Shape { kind, dimensions, batch: batch as u64, input, output, in_place: Some(padded) };
        let Some([input, output]) = advanced else { return Ok(shape) };
        let [input, output] = [input.layout(sizes.len())?, output.layout(sizes.len())?];
        Ok(Shape { input, output, in_place: None, ..shape })
    }

    /// The numbers in the work area, which are complex for real transforms too.
    pub(crate) fn elements(&self) -> u64 {
        self.batch * self.dimensions.iter().product::<u64>()
    }

    /// The bytes of the two parts of the work area: one of the transform's size, and one that lines
    /// of another length need as well.
    pub(crate) fn work(&self) -> Outcome<[u64; 2]> {
        let elements = self.elements();
        let mut second = elements;
        for length in self.dimensions {
            let line = Axis::new(length)?.passes.length;
            if line != length {
                let longer = (elements / length).checked_mul(2 * line).ok_or(Status::INVALID_SIZE)?;
                second = second.max(longer);
            }
        }
        let bytes = 2 * self.kind.precision.bytes();
        Ok([elements * bytes, second.checked_mul(bytes).ok_or(Status::INVALID_SIZE)?])
    }
}

impl Advanced {
    fn layout(&self, rank: usize) -> Outcome<Layout> {
        let positive = |value: i64| u64::try_from(value).ok().filter(|value| *value < ELEMENTS_MAX);
        let mut steps = [0; RANK_MAX + 1];
        let mut step = positive(self.stride).ok_or(Status::INVALID_VALUE)?;
        steps[RANK_MAX] = positive(self.distance).ok_or(Status::INVALID_VALUE)?;
        for dimension in (0..rank).rev() {
            steps[RANK_MAX - rank + dimension] = step;
            // The size of the first dimension does not count.
            if dimension > 0 {
                let size = positive(self.embedding[dimension]).ok_or(Status::INVALID_VALUE)?;
                step = step.checked_mul(size).filter(|step| *step < 1 << 60).ok_or(Status::INVALID_SIZE)?;
            }
        }
        Ok(Layout { steps })
    }
}

/// The tables of a dimension in the device's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tables {
    pub(crate) twiddles: DevicePtr,
    pub(crate) chirp: DevicePtr,
    pub(crate) filter: DevicePtr,
}

/// A plan whose sizes are known.
pub(crate) struct Made {
    pub(crate) shape: Shape,
    /// How the dimensions are split.
    pub(crate) axes: [Axis; RANK_MAX],
    pub(crate) tables: [Tables; RANK_MAX],
    /// The context whose memory has the tables.
    context: u64,
    own_work: Option<DevicePtr>,
}

/// The state behind a `cufftHandle`.
pub(crate) struct Plan {
    pub(crate) stream: Stream,
    allocates: bool,
    /// The work area that the caller gave.
    work: Option<DevicePtr>,
    pub(crate) made: Option<Made>,
}

static PLANS: Handles<Plan> = Handles::new(0);

/// Makes a plan without sizes.
pub(crate) fn create() -> Outcome<PlanId> {
    Driver::get()?.ensure_context()?;
    let id = PLANS.insert(Plan { stream: 0, allocates: true, work: None, made: None });
    PlanId::try_from(id).map_err(|_| Status::ALLOC_FAILED)
}

pub(crate) fn destroy(id: PlanId) -> Outcome {
    let plan = PLANS.remove(usize::try_from(id).unwrap_or(0)).ok_or(Status::INVALID_PLAN)?;
    let mut plan = plan.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(made) = plan.made.take() {
        made.release();
    }
    Ok(())
}

/// Does something with a plan.
pub(crate) fn with<T>(id: PlanId, action: impl FnOnce(&mut Plan) -> Outcome<T>) -> Outcome<T> {
    let plan = PLANS.get(usize::try_from(id).unwrap_or(0)).ok_or(Status::INVALID_PLAN)?;
    let mut plan = plan.lock().unwrap_or_else(PoisonError::into_inner);
    action(&mut plan)
}

impl Plan {
    /// Gives a plan its sizes, once, and returns the bytes of its work area.
    pub(crate) fn make(&mut self, shape: Shape) -> Outcome<u64> {
        if self.made.is_some() {
            return Err(Status::INVALID_PLAN);
        }
        let bytes = shape.work()?.iter().sum();
        let driver = Driver::get()?;
        driver.ensure_context()?;
        let own_work = if self.allocates { Some(driver.allocate(bytes)?) } else { None };
        let made = Made::new(shape).inspect_err(|_| own_work.iter().for_each(|&work| driver.free(work)))?;
        self.made = Some(Made { own_work, ..made });
        Ok(bytes)
    }

    pub(crate) fn set_allocates(&mut self, allocates: bool) -> Outcome {
        if self.made.is_some() {
            return Err(Status::INVALID_PLAN);
        }
        self.allocates = allocates;
        Ok(())
    }

    pub(crate) fn set_work(&mut self, work: DevicePtr) {
        self.work = (work != 0).then_some(work);
    }

    /// The sizes and the work area, for an execution.
    pub(crate) fn ready(&self) -> Outcome<(&Made, DevicePtr)> {
        let made = self.made.as_ref().ok_or(Status::INVALID_PLAN)?;
        let work = self.work.or(made.own_work).ok_or(Status::INVALID_PLAN)?;
        if Driver::get()?.context_id()? != made.context {
            return Err(Status::INVALID_PLAN);
        }
        Ok((made, work))
    }
}

impl Made {
    /// Allocates the tables and computes them: device memory first, so that lengths that the device
    /// has no memory for cost nothing on the host.
    fn new(shape: Shape) -> Outcome<Made> {
        let [first, second, third] = shape.dimensions.map(Axis::new);
        let mut made = Made {
            axes: [first?, second?, third?],
            shape,
            tables: [Tables::default(); RANK_MAX],
            context: Driver::get()?.context_id()?,
            own_work: None,
        };
        made.place_tables().inspect_err(|_| made.release())?;
        Ok(made)
    }

    fn place_tables(&mut self) -> Outcome {
        let driver = Driver::get()?;
        let number = 2 * self.shape.kind.precision.bytes();
        let dimensions = self.shape.dimensions;
        let same = |at: usize| (0..at).find(|&other| dimensions[other] == dimensions[at]);
        // Dimensions of one length have one set of tables, and those of length 1 none.
        let is_first = |at: usize| dimensions[at] > 1 && same(at).is_none();
        for at in (0..RANK_MAX).filter(|&at| is_first(at)) {
            let (axis, tables) = (&self.axes[at], &mut self.tables[at]);
            tables.twiddles = driver.allocate(axis.passes.length * number)?;
            if axis.is_convolution() {
                tables.chirp = driver.allocate(axis.length * number)?;
                tables.filter = driver.allocate(axis.passes.length * number)?;
            }
        }
        for at in (0..RANK_MAX).filter(|&at| is_first(at)) {
            self.write_tables(driver, at)?;
        }
        for at in 0..RANK_MAX {
            if let Some(other) = same(at) {
                self.tables[at] = self.tables[other];
            }
        }
        Ok(())
    }

    fn write_tables(&self, driver: &Driver, at: usize) -> Outcome {
        let (axis, tables) = (&self.axes[at], self.tables[at]);
        let write = |to, table: &[Number]| -> Outcome {
            Ok(driver.write(to, &bytes_of(table, self.shape.kind.precision)?)?)
        };
        let twiddles = axis.passes.twiddles()?;
        write(tables.twiddles, &twiddles)?;
        if axis.is_convolution() {
            let convolution = axis.convolution(&twiddles)?;
            write(tables.chirp, &convolution.chirp)?;
            write(tables.filter, &convolution.filter)?;
        }
        Ok(())
    }

    /// Frees memory, which waits for the work that uses it. Memory of another context goes with
    /// that.
    fn release(&self) {
        let Ok(driver) = Driver::get() else { return };
        if driver.context_id() != Ok(self.context) {
            return;
        }
        let tables = self.tables.iter().flat_map(|tables| [tables.twiddles, tables.chirp, tables.filter]);
        let addresses: std::collections::HashSet<DevicePtr> = tables.chain(self.own_work).collect();
        addresses.into_iter().filter(|address| *address != 0).for_each(|address| driver.free(address));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const C2C: i32 = 0x29;
    const R2C: i32 = 0x2a;

    #[test]
    fn the_basic_layout_has_half_of_the_complex_numbers_of_a_real_transform() {
        let shape = Shape::new(R2C, &[4, 6], None, 3).expect("a shape");
        assert_eq!(shape.dimensions, [1, 4, 6]);
        assert_eq!(shape.input.steps, [24, 6, 1, 24]);
        assert_eq!(shape.output.steps, [16, 4, 1, 16]);
        assert_eq!(shape.in_place.expect("a layout").steps, [32, 8, 1, 32]);
    }

    #[test]
    fn an_advanced_layout_is_as_documented() {
        let side = |stride, distance| Advanced { embedding: vec![9, 8, 7], stride, distance };
        let shape = Shape::new(C2C, &[2, 3, 4], Some([side(5, 1000), side(1, 0)]), 1).expect("a shape");
        assert_eq!(shape.input.steps, [5 * 8 * 7, 5 * 7, 5, 1000]);
        assert_eq!(shape.output.steps, [8 * 7, 7, 1, 0]);
        assert_eq!(shape.in_place, None);
    }

    #[test]
    fn wrong_sizes_are_refused() {
        let refused = |sizes: &[i64], batch| Shape::new(C2C, sizes, None, batch).expect_err("refused");
        assert_eq!(refused(&[0], 1), Status::INVALID_SIZE);
        assert_eq!(refused(&[4], 0), Status::INVALID_SIZE);
        assert_eq!(refused(&[1, 2, 3, 4], 1), Status::INVALID_VALUE);
        assert_eq!(refused(&[i64::MAX, i64::MAX], 1), Status::INVALID_SIZE);
        assert_eq!(Shape::new(7, &[4], None, 1).expect_err("refused"), Status::INVALID_TYPE);
    }

    #[test]
    fn dimensions_that_are_too_long_are_refused_before_any_memory_is_asked_for() {
        let work = |size| Shape::new(C2C, &[size], None, 1).expect("a shape").work();
        assert_eq!(work(1 << 40).expect_err("refused"), Status::INVALID_SIZE);
        assert_eq!(work((1 << 31) - 1).expect_err("refused"), Status::INVALID_SIZE);
    }

    #[test]
    fn convolutions_need_longer_lines() {
        let work = |sizes: &[i64]| Shape::new(C2C, sizes, None, 1).expect("a shape").work().expect("sizes");
        assert_eq!(work(&[8]), [64, 64]);
        // 17 needs lines of 64, two of them.
        assert_eq!(work(&[17]), [17 * 8, 2 * 64 * 8]);
    }
}
