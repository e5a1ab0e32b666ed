//! Executions: from a plan and the caller's arrays to launches.

use sluice_library_base::driver::{DevicePtr, Stream};
use sluice_library_base::kernels::{self, Launch};
use sluice_library_base::writer::Source;

use crate::abi::{Direction, Form, Outcome, Precision, Status};
use crate::axis::{Axis, Passes};
use crate::plan::{Layout, Plan, RANK_MAX, Tables};
use crate::ptx::layout::{Copy, CopyForm};
use crate::ptx::passes::{Pass, TableProduct};

/// Threads of a block, and the most blocks: kernels repeat their work for what is beyond.
const THREADS: u32 = 256;
const BLOCKS_MAX: u64 = 4096;

/// The lines of one dimension in the work area: the elements of the dimensions after it, and the
/// number of lines for each of those.
#[derive(Clone, Copy)]
struct Lines {
    inner: u64,
    outer: u64,
}

/// What all launches of an execution share.
#[derive(Clone, Copy)]
struct Run {
    stream: Stream,
    precision: Precision,
}

/// Two buffers that passes write in turns.
#[derive(Clone, Copy)]
struct Buffers {
    current: DevicePtr,
    other: DevicePtr,
}

impl Buffers {
    fn exchange(&mut self) {
        std::mem::swap(&mut self.current, &mut self.other);
    }
}

/// Transforms the input to the output, which may be the same array.
pub(crate) fn execute(plan: &Plan, input: DevicePtr, output: DevicePtr, direction: Direction) -> Outcome {
    let (made, work) = plan.ready()?;
    if input == 0 || output == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let shape = &made.shape;
    let run = Run { stream: plan.stream, precision: shape.kind.precision };
    let [first_bytes, _] = shape.work()?;
    let mut buffers = Buffers { current: work, other: work + first_bytes };
    let dimensions = shape.dimensions;
    let packed = Layout::packed(dimensions, dimensions[0]);
    let in_place = shape.in_place.filter(|_| input == output);
    let (from, to) = match shape.kind.form {
        Form::Complex => (shape.input, shape.output),
        Form::RealToComplex => (in_place.unwrap_or(shape.input), shape.output),
        Form::ComplexToReal => (shape.input, in_place.unwrap_or(shape.output)),
    };

    let form = match shape.kind.form {
        Form::Complex => CopyForm::Complex,
        Form::RealToComplex => CopyForm::FromReal,
        Form::ComplexToReal => CopyForm::FromHalf,
    };
    run.copy(form, [input, buffers.current], dimensions, shape.batch, [from, packed])?;

    let mut lines = Lines { inner: 1, outer: shape.elements() };
    for at in (0..RANK_MAX).rev() {
        lines.outer /= dimensions[at];
        if dimensions[at] > 1 {
            run.axis(&made.axes[at], made.tables[at], direction, lines, &mut buffers)?;
        }
        lines.inner *= dimensions[at];
    }

    let [first, second, last] = dimensions;
    let (form, size) = match shape.kind.form {
        Form::Complex => (CopyForm::Complex, dimensions),
        Form::RealToComplex => (CopyForm::Complex, [first, second, last / 2 + 1]),
        Form::ComplexToReal => (CopyForm::ToReal, dimensions),
    };
    run.copy(form, [buffers.current, output], size, shape.batch, [packed, to])
}

impl Run {
    fn launch(
        self,
        items: u64,
        name: String,
        source: impl FnOnce(&str) -> Source,
        arguments: &[u64],
    ) -> Outcome {
        let blocks = items.div_ceil(u64::from(THREADS)).clamp(1, BLOCKS_MAX) as u32;
        let at = Launch { stream: self.stream, grid: [blocks, 1, 1], block: [THREADS, 1, 1] };
        Ok(kernels::launch(at, name, source, arguments)?)
    }

    fn copy(
        self,
        form: CopyForm,
        arrays: [DevicePtr; 2],
        size: [u64; RANK_MAX],
        batch: u64,
        layouts: [Layout; 2],
    ) -> Outcome {
        let count = batch * size.iter().product::<u64>();
        let mut arguments = vec![arrays[0], arrays[1], count];
        arguments.extend(size);
        arguments.extend(layouts.iter().flat_map(|layout| layout.steps));
        let kernel = Copy { precision: self.precision, form };
        self.launch(count, kernel.name(), |name| kernel.source(name), &arguments)
    }

    /// Transforms one dimension; the result is in the current buffer.
    fn axis(
        self,
        axis: &Axis,
        tables: Tables,
        direction: Direction,
        lines: Lines,
        buffers: &mut Buffers,
    ) -> Outcome {
        if !axis.is_convolution() {
            return self.passes(&axis.passes, tables.twiddles, direction, lines, buffers);
        }
        // The first part of the work area is not large enough for the longer lines, so the second
        // has two buffers for those.
        let (short, second) = if buffers.current < buffers.other {
            (buffers.current, buffers.other)
        } else {
            self.move_to(lines, axis.length, buffers)?;
            (buffers.current, buffers.other)
        };
        let line = axis.passes.length;
        let longer = lines.inner * lines.outer * line * 2 * self.precision.bytes();
        let mut long = Buffers { current: second, other: second + longer };
        let product = |from, to, lengths: [u64; 2], table| {
            let [length, new_length] = lengths;
            let count = lines.inner * lines.outer * new_length;
            let arguments = [from, to, count, lines.inner, new_length, length, table];
            let kernel = TableProduct { precision: self.precision, direction };
            self.launch(count, kernel.name(), |name| kernel.source(name), &arguments)
        };
        product(short, long.current, [axis.length, line], tables.chirp)?;
        self.passes(&axis.passes, tables.twiddles, Direction::Forward, lines, &mut long)?;
        product(long.current, long.current, [line, line], tables.filter)?;
        self.passes(&axis.passes, tables.twiddles, Direction::Inverse, lines, &mut long)?;
        product(long.current, short, [line, axis.length], tables.chirp)?;
        *buffers = Buffers { current: short, other: second };
        Ok(())
    }

    /// Copies the current buffer to the other one.
    fn move_to(self, lines: Lines, length: u64, buffers: &mut Buffers) -> Outcome {
        let size = [lines.outer, length, lines.inner];
        let packed = Layout::packed(size, lines.outer);
        self.copy(CopyForm::Complex, [buffers.current, buffers.other], size, 1, [packed, packed])?;
        buffers.exchange();
        Ok(())
    }

    fn passes(
        self,
        passes: &Passes,
        twiddles: DevicePtr,
        direction: Direction,
        lines: Lines,
        buffers: &mut Buffers,
    ) -> Outcome {
        let mut made = 1;
        for &radix in &passes.radices {
            let of_line = passes.length / u64::from(radix);
            let count = of_line * lines.inner * lines.outer;
            let kernel = Pass { precision: self.precision, direction, radix, is_first: made == 1 };
            // The factors of this pass are roots of the length that it makes.
            let distance = of_line / made;
            let arguments =
                [buffers.current, buffers.other, count, of_line, lines.inner, made, twiddles, distance];
            self.launch(count, kernel.name(), |name| kernel.source(name), &arguments)?;
            buffers.exchange();
            made *= u64::from(radix);
        }
        Ok(())
    }
}
