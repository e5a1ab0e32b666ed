//! Generators: settings of a caller, the position in the sequence, and memory of the device.

use std::sync::PoisonError;

use sluice_library_base::driver::{DevicePtr, Driver, Stream};
use sluice_library_base::handles::Handles;
use sluice_library_base::kernels::{self, Launch};
use sluice_library_base::writer::Source;

use crate::abi::{Kind, Outcome, Precision, Status};
use crate::engine::{STREAMS, bytes_of, mersenne, mrg, poisson, sobol, xorwow};
use crate::ptx;
use crate::ptx::distribution::{Distribution, Shape};

/// Threads of a block, and the most blocks: kernels repeat their work for what is beyond.
const THREADS: u32 = 256;
const BLOCKS_MAX: u64 = 1024;

/// Threads of a block of the kernels whose threads have a stream each.
const STREAM_THREADS: u32 = 128;

/// The state behind a `curandGenerator_t`.
pub(crate) struct Generator {
    pub(crate) kind: Kind,
    seed: u64,
    offset: u64,
    stream: Stream,
    dimensions: u32,
    /// The number of the next word of the sequence; of a quasirandom one, the next point's.
    position: u64,
    state: Option<State>,
    poisson: Option<PoissonTable>,
    /// Memory that the generator has replaced and captured graphs may still use.
    replaced: Vec<Memory>,
}

/// Memory of a context.
#[derive(Clone, Copy)]
struct Memory {
    context: u64,
    address: DevicePtr,
    /// Whether work that uses it was captured, so that launches of a graph use it too.
    is_captured: bool,
}

/// What a generator has in a context's memory: states of streams or of MT19937, direction numbers.
struct State {
    memory: Memory,
    /// The words of MT19937's state that have been used.
    used: u64,
}

/// A cumulative distribution in a context's memory, behind the value that it begins with.
struct PoissonTable {
    memory: Memory,
    mean: f64,
    entries: u64,
}

static GENERATORS: Handles<Generator> = Handles::new(0x1000);

/// Makes a generator in the current context, or in the primary one of device 0.
pub(crate) fn create(kind: Kind) -> Outcome<usize> {
    Driver::get()?.ensure_context()?;
    Ok(GENERATORS.insert(Generator {
        kind,
        seed: 0,
        offset: 0,
        stream: 0,
        dimensions: 1,
        position: 0,
        state: None,
        poisson: None,
        replaced: Vec::new(),
    }))
}

/// Ends a generator, once the work that was given with it is done.
pub(crate) fn destroy(id: usize) -> Outcome {
    let generator = GENERATORS.remove(id).ok_or(Status::NOT_INITIALIZED)?;
    generator.lock().unwrap_or_else(PoisonError::into_inner).release();
    Ok(())
}

/// Does something with a generator.
pub(crate) fn with<T>(id: usize, action: impl FnOnce(&mut Generator) -> Outcome<T>) -> Outcome<T> {
    let generator = GENERATORS.get(id).ok_or(Status::NOT_INITIALIZED)?;
    let mut generator = generator.lock().unwrap_or_else(PoisonError::into_inner);
    action(&mut generator)
}

impl Memory {
    fn with_contents(contents: &[u8]) -> Outcome<Memory> {
        let driver = Driver::get()?;
        let (context, address) = (driver.context_id()?, driver.allocate_with(contents)?);
        Ok(Memory { context, address, is_captured: false })
    }

    /// Frees memory of the current context. Memory of another one goes with that.
    fn free(self) {
        if let Ok(driver) = Driver::get()
            && driver.context_id() == Ok(self.context)
        {
            driver.free(self.address);
        }
    }
}

impl Generator {
    fn release(&mut self) {
        self.restart();
        if let Some(table) = self.poisson.take() {
            self.replace(table.memory);
        }
        self.replaced.drain(..).for_each(Memory::free);
    }

    /// Frees memory, or keeps it for the graphs that use it until the generator is destroyed.
    fn replace(&mut self, memory: Memory) {
        if memory.is_captured {
            self.replaced.push(memory);
        } else {
            memory.free();
        }
    }

    /// Goes back to the beginning of the sequence, at the offset.
    fn restart(&mut self) {
        self.position = self.offset;
        if let Some(state) = self.state.take() {
            self.replace(state.memory);
        }
    }

    pub(crate) fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
        self.restart();
    }

    pub(crate) fn set_offset(&mut self, offset: u64) {
        self.offset = offset;
        self.restart();
    }

    pub(crate) fn set_dimensions(&mut self, dimensions: u32) -> Outcome {
        if dimensions == 0 || dimensions > sobol::DIMENSIONS_MAX {
            if dimensions != 0 {
                sluice_library_base::entry::report_missing(
                    "curandSetQuasiRandomGeneratorDimensions with more than 21 dimensions",
                );
            }
            return Err(Status::OUT_OF_RANGE);
        }
        self.dimensions = dimensions;
        self.restart();
        Ok(())
    }

    pub(crate) fn set_stream(&mut self, stream: Stream) {
        // Work in the new stream reads the state that work in the old one leaves. While the stream
        // is captured it cannot be waited for; the order is the caller's then.
        if stream != self.stream
            && self.state.is_some()
            && let Ok(driver) = Driver::get()
            && !driver.is_captured(self.stream)
        {
            let _ = driver.synchronize(self.stream);
        }
        self.stream = stream;
    }

    /// Places the state in the device's memory, if it is not there.
    pub(crate) fn prepare(&mut self) -> Outcome {
        let driver = Driver::get()?;
        let context = driver.context_id()?;
        if let Some(state) = &mut self.state {
            if state.memory.context != context {
                return Err(Status::INITIALIZATION_FAILED);
            }
            state.memory.is_captured |= driver.is_captured(self.stream);
            return Ok(());
        }
        let (words, used) = match self.kind {
            Kind::Philox4x32 => return Ok(()),
            Kind::Xorwow => (xorwow::states(self.seed, self.position), 0),
            Kind::Mrg32k3a => (mrg::states(self.seed, self.position), 0),
            Kind::Mt19937 => (mersenne::state(self.seed).to_vec(), mersenne::WORDS as u64),
            Kind::Sobol32 => (sobol::directions(self.dimensions), 0),
        };
        let is_captured = driver.is_captured(self.stream);
        let memory = Memory { is_captured, ..Memory::with_contents(&bytes_of(&words))? };
        self.state = Some(State { memory, used });
        Ok(())
    }

    /// Writes the next words of the sequence without changing them.
    pub(crate) fn words(&mut self, results: DevicePtr, count: u64) -> Outcome {
        self.check_count(count, 1)?;
        self.continue_sequence(results, count, 4)
    }

    /// Writes numbers of a distribution; the parameters are its mean and its deviation.
    pub(crate) fn numbers(
        &mut self,
        results: DevicePtr,
        count: u64,
        (shape, precision): (Shape, Precision),
        parameters: [f64; 2],
    ) -> Outcome {
        self.finish(results, count, (shape, precision), parameters.map(f64::to_bits))
    }

    pub(crate) fn poisson(&mut self, results: DevicePtr, count: u64, mean: f64) -> Outcome {
        if !(mean > 0.0 && mean <= poisson::MEAN_MAX) {
            return Err(Status::OUT_OF_RANGE);
        }
        let table = self.poisson_table(mean)?;
        self.finish(results, count, (Shape::Poisson, Precision::Float), table)
    }

    /// The address of the table for a mean, and its number of entries.
    fn poisson_table(&mut self, mean: f64) -> Outcome<[u64; 2]> {
        let driver = Driver::get()?;
        let context = driver.context_id()?;
        let is_captured = driver.is_captured(self.stream);
        if let Some(table) = &mut self.poisson
            && table.memory.context == context
            && table.mean == mean
        {
            table.memory.is_captured |= is_captured;
            return Ok([table.memory.address, table.entries]);
        }
        if let Some(table) = self.poisson.take() {
            self.replace(table.memory);
        }
        let table = poisson::Table::new(mean);
        let memory = Memory { is_captured, ..Memory::with_contents(&table.bytes())? };
        let entries = table.cumulative.len() as u64;
        self.poisson = Some(PoissonTable { memory, mean, entries });
        Ok([memory.address, entries])
    }

    /// Points of several dimensions are asked for whole, and pairs of normal numbers too.
    fn check_count(&self, count: u64, multiple: u64) -> Outcome {
        let dimensions = if self.kind.is_quasi() { u64::from(self.dimensions) } else { 1 };
        let is_whole = count.is_multiple_of(dimensions) && count.is_multiple_of(multiple);
        if is_whole { Ok(()) } else { Err(Status::LENGTH_NOT_MULTIPLE) }
    }

    fn finish(
        &mut self,
        results: DevicePtr,
        count: u64,
        (shape, precision): (Shape, Precision),
        parameters: [u64; 2],
    ) -> Outcome {
        let kernel = Distribution { kind: self.kind, precision, shape };
        self.check_count(count, kernel.results_of_item())?;
        let words = match precision {
            Precision::Float => 1,
            Precision::Double => self.kind.words_of_double(),
        };
        self.continue_sequence(results, count * words, precision.bytes() / words)?;
        let items = count / kernel.results_of_item();
        let arguments = [results, items, parameters[0], parameters[1]];
        self.launch_items(items, kernel.name(), |name| kernel.source(name), &arguments)
    }

    /// Writes the next words of the sequence, with a distance in bytes from one to the next.
    fn continue_sequence(&mut self, results: DevicePtr, count: u64, distance: u64) -> Outcome {
        if count == 0 {
            return Ok(());
        }
        if results == 0 {
            return Err(Status::LAUNCH_FAILURE);
        }
        self.prepare()?;
        let state = self.state.as_ref().map_or(0, |state| state.memory.address);
        let streams = Launch {
            stream: self.stream,
            grid: [STREAMS as u32 / STREAM_THREADS, 1, 1],
            block: [STREAM_THREADS, 1, 1],
        };
        let strided = [results, count, distance, self.position, state];
        match self.kind {
            Kind::Philox4x32 => {
                let before = self.position % 4;
                let blocks = (before + count).div_ceil(4);
                let arguments = [results, count, before, self.position / 4, blocks, self.seed];
                self.launch_items(blocks, "sluice_philox".to_owned(), ptx::words::philox, &arguments)?;
            }
            Kind::Xorwow => {
                kernels::launch(streams, "sluice_xorwow".to_owned(), ptx::words::xorwow, &strided)?;
            }
            Kind::Mrg32k3a => {
                kernels::launch(streams, "sluice_mrg32k3a".to_owned(), ptx::words::mrg, &strided)?;
            }
            Kind::Mt19937 => self.twist(results, count)?,
            Kind::Sobol32 => {
                let points = count / u64::from(self.dimensions);
                let arguments = [results, distance, points, u64::from(self.dimensions), self.position, state];
                self.launch_items(points, "sluice_sobol32".to_owned(), ptx::sobol::source, &arguments)?;
            }
        }
        let steps = if self.kind.is_quasi() { count / u64::from(self.dimensions) } else { count };
        self.position = self.position.wrapping_add(steps);
        Ok(())
    }

    /// Continues MT19937.
    fn twist(&mut self, results: DevicePtr, count: u64) -> Outcome {
        let Some(state) = &mut self.state else { return Err(Status::INTERNAL_ERROR) };
        let words = mersenne::WORDS as u64;
        let states = (state.used + count).div_ceil(words);
        let one = Launch { stream: self.stream, grid: [1; 3], block: [ptx::mersenne::THREADS, 1, 1] };
        let arguments = [results, count, state.memory.address, state.used, states];
        kernels::launch(one, "sluice_mt19937".to_owned(), ptx::mersenne::source, &arguments)?;
        state.used = state.used + count - (states - 1) * words;
        Ok(())
    }

    fn launch_items(
        &self,
        items: u64,
        name: String,
        source: impl FnOnce(&str) -> Source,
        arguments: &[u64],
    ) -> Outcome {
        if items == 0 {
            return Ok(());
        }
        let blocks = items.div_ceil(u64::from(THREADS)).min(BLOCKS_MAX) as u32;
        let at = Launch { stream: self.stream, grid: [blocks, 1, 1], block: [THREADS, 1, 1] };
        Ok(kernels::launch(at, name, source, arguments)?)
    }
}
