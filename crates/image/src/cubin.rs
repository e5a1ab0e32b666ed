//! Machine code files (cubins): what launching their kernels takes, without looking at an
//! instruction.
//!
//! A cubin is an ELF file. Kernels are function symbols marked as entries, and what is to be known
//! of kernel `k` stands in sections named after it:
//!
//! ```text
//! .nv.info.k      attributes: parameters, block and cluster sizes
//! .nv.info        registers and stack of all functions
//! .nv.shared.k    its static shared memory (size only)
//! .nv.constant3   constants of the module
//! .nv.global, .nv.global.init   variables of the module, as object symbols
//! ```
//!
//! There is no public specification. What is here was found out by compiling known PTX with `ptxas`
//! for architectures from 8.0 to 12.0 and comparing.

use std::collections::{BTreeMap, HashMap};

use crate::ImageError;
use crate::elf::{self, Section, Symbol};

/// What is known of the code in one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cubin {
    /// The number in `sm_90`.
    pub architecture: u32,
    pub kernels: BTreeMap<String, Kernel>,
    pub variables: BTreeMap<String, Variable>,
    /// Names of functions that are not kernels.
    pub functions: Vec<String>,
}

/// One kernel. Sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Offset and size of each parameter in the parameter buffer.
    pub params: Vec<(u64, u64)>,
    /// Of the parameter buffer.
    pub params_bytes: u32,
    /// Of 32 bits, per thread.
    pub registers: u32,
    /// Stack per thread.
    pub local: u32,
    /// Static, per block.
    pub shared: u32,
    /// Of the whole module.
    pub constant: u32,
    pub max_threads: Option<[u32; 3]>,
    pub required_threads: Option<[u32; 3]>,
    pub explicit_cluster: bool,
    pub required_cluster: Option<[u32; 3]>,
}

/// A variable in global or constant memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variable {
    pub bytes: u64,
    pub is_constant: bool,
    /// The first bytes; zeros follow.
    pub init: Vec<u8>,
    /// Addresses of variables that stand in it: offset, the variable's name, and what is added to
    /// its address.
    pub addresses: Vec<(u64, String, i64)>,
}

/// Marks a function symbol as a kernel (`st_other`).
const ENTRY: u8 = 0x10;
/// Stores 64 bits of an address: the one relocation that data needs.
const R_CUDA_64: u32 = 2;

/// Attributes of `.nv.info` sections, by number.
mod attribute {
    pub(super) const MAX_THREADS: u8 = 0x05;
    pub(super) const REQNTID: u8 = 0x10;
    pub(super) const FRAME_SIZE: u8 = 0x11;
    pub(super) const MIN_STACK_SIZE: u8 = 0x12;
    pub(super) const KPARAM_INFO: u8 = 0x17;
    pub(super) const CBANK_PARAM_SIZE: u8 = 0x19;
    pub(super) const REGCOUNT: u8 = 0x2f;
    pub(super) const CTA_PER_CLUSTER: u8 = 0x3d;
    pub(super) const EXPLICIT_CLUSTER: u8 = 0x3e;
    /// For kernels whose parameters do not fit the fields of the first form.
    pub(super) const KPARAM_INFO_V2: u8 = 0x45;
}

impl Cubin {
    /// Reads a file of any architecture.
    pub fn parse(bytes: &[u8]) -> Result<Cubin, ImageError> {
        let file = elf::File::parse(bytes)?;
        let named: HashMap<&str, &Section<'_>> =
            file.sections.iter().map(|section| (section.name, section)).collect();
        let architecture = architecture(bytes);
        let resources = Resources::read(named.get(".nv.info").map_or(&[], |section| section.data));
        let constant = named.get(".nv.constant3").map_or(0, |section| section.size);
        let mut cubin = Cubin { architecture, ..Cubin::default() };
        for (index, symbol) in file.symbols.iter().enumerate() {
            match symbol.kind {
                elf::STT_FUNC if symbol.other & ENTRY != 0 => {
                    let mut kernel = Kernel { constant: saturate(constant), ..Kernel::default() };
                    kernel.registers = resources.registers.get(&(index as u32)).copied().unwrap_or(0);
                    kernel.local = resources.stack.get(&(index as u32)).copied().unwrap_or(0);
                    if let Some(info) = named.get(format!(".nv.info.{}", symbol.name).as_str()) {
                        kernel.read(info.data);
                    }
                    let shared = named.get(format!(".nv.shared.{}", symbol.name).as_str());
                    kernel.shared = static_shared(shared.map_or(0, |section| section.size), architecture);
                    cubin.kernels.insert(symbol.name.to_owned(), kernel);
                }
                elf::STT_FUNC => cubin.functions.push(symbol.name.to_owned()),
                elf::STT_OBJECT => {
                    if let Some(variable) = variable(&file, symbol) {
                        cubin.variables.insert(symbol.name.to_owned(), variable);
                    }
                }
                _ => {}
            }
        }
        Ok(cubin)
    }
}

/// From the file header: its flags are laid out anew where the byte for the system's ABI is 0x41.
fn architecture(bytes: &[u8]) -> u32 {
    let byte = |at: usize| bytes.get(at).copied().map_or(0, u32::from);
    if byte(7) == 0x41 { byte(0x31) } else { byte(0x30) }
}

/// From compute capability 9.0 on the section counts what the system reserves in each block, too.
fn static_shared(section_bytes: u64, architecture: u32) -> u32 {
    const RESERVED: u64 = 1 << 10;
    saturate(if architecture >= 90 { section_bytes.saturating_sub(RESERVED) } else { section_bytes })
}

fn saturate(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// What `.nv.info` says, by the number of the function's symbol.
#[derive(Default)]
struct Resources {
    registers: HashMap<u32, u32>,
    stack: HashMap<u32, u32>,
}

impl Resources {
    fn read(info: &[u8]) -> Resources {
        let mut all = Resources::default();
        for (number, value) in attributes(info) {
            let (Some(symbol), Some(amount)) = (u32_at(value, 0), u32_at(value, 4)) else { continue };
            match number {
                attribute::REGCOUNT => _ = all.registers.insert(symbol, amount),
                // The frame is the function's own; the stack is that of what it calls, too, where
                // that is known.
                attribute::FRAME_SIZE | attribute::MIN_STACK_SIZE => {
                    let most = all.stack.entry(symbol).or_default();
                    *most = amount.max(*most);
                }
                _ => {}
            }
        }
        all
    }
}

impl Kernel {
    /// Takes over what the kernel's own `.nv.info` says.
    fn read(&mut self, info: &[u8]) {
        let mut params: BTreeMap<u16, (u64, u64)> = BTreeMap::new();
        for (number, value) in attributes(info) {
            match number {
                attribute::KPARAM_INFO | attribute::KPARAM_INFO_V2 => {
                    let (Some(ordinal), Some(offset), Some(last)) =
                        (u16_at(value, 4), u16_at(value, 6), u32_at(value, 8))
                    else {
                        continue;
                    };
                    let size = if number == attribute::KPARAM_INFO { last >> 18 } else { last };
                    params.insert(ordinal, (offset.into(), size.into()));
                }
                attribute::CBANK_PARAM_SIZE => self.params_bytes = u16_at(value, 0).unwrap_or(0).into(),
                attribute::MAX_THREADS => self.max_threads = dimension(value),
                attribute::REQNTID => self.required_threads = dimension(value),
                attribute::CTA_PER_CLUSTER => self.required_cluster = dimension(value),
                attribute::EXPLICIT_CLUSTER => self.explicit_cluster = true,
                _ => {}
            }
        }
        self.params = params.into_values().collect();
    }
}

/// Number and value of each attribute in a section: 4 bytes (format, number, and a value or its
/// size), then the value where it does not fit. Ends where the section makes no sense any more.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    /// The format of values with a size.
    const SIZED: u8 = 4;
    std::iter::from_fn(move || {
        let (&[format, number, low, high], behind) = rest.split_first_chunk::<4>()?;
        let inside = &rest[2..4];
        if format != SIZED {
            rest = behind;
            return Some((number, inside));
        }
        let value = behind.get(..usize::from(u16::from_le_bytes([low, high])))?;
        rest = &behind[value.len()..];
        Some((number, value))
    })
}

/// The variable of an object symbol; `None` for what lies in no memory that programs can name.
fn variable(file: &elf::File<'_>, symbol: &Symbol<'_>) -> Option<Variable> {
    let section = file.sections.get(usize::from(symbol.section))?;
    let is_constant = section.name == ".nv.constant3";
    if !is_constant && !matches!(section.name, ".nv.global" | ".nv.global.init") {
        return None;
    }
    let start = usize::try_from(symbol.value).ok()?;
    let end = usize::try_from(symbol.value.checked_add(symbol.size)?).ok()?;
    let init = section.data.get(start..end).unwrap_or_default().to_vec();
    let relocations = ["rel", "rela"].map(|kind| format!(".{kind}{}", section.name));
    let relocations = file.sections.iter().filter(|section| relocations.iter().any(|n| n == section.name));
    let mut addresses = Vec::new();
    for relocation in relocations.flat_map(elf::relocations) {
        let inside = (symbol.value..symbol.value + symbol.size).contains(&relocation.offset);
        if let Some(target) = file.symbols.get(relocation.symbol as usize)
            && relocation.kind == R_CUDA_64
            && inside
        {
            addresses.push((relocation.offset - symbol.value, target.name.to_owned(), relocation.addend));
        }
    }
    Some(Variable { bytes: symbol.size, is_constant, init, addresses })
}

fn dimension(value: &[u8]) -> Option<[u32; 3]> {
    Some([u32_at(value, 0)?, u32_at(value, 4)?, u32_at(value, 8)?])
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|field| u16::from_le_bytes(*field))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|field| u32::from_le_bytes(*field))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_and_sizes_are_read() {
        // As `ptxas -arch=sm_120` writes it for (u64, u32, b8[48], u8) with `.maxntid 256`.
        let info: [u32; 14] = [
            // KPARAM_INFO: index 0, ordinal 1, offset 8, 4 bytes
            0x000c_1704,
            0,
            0x0008_0001,
            4 << 18 | 0x1f000,
            0x000c_1704,
            0,
            0,
            8 << 18 | 0x1f000,
            0x000c_0504,
            256,
            1,
            1,
            0x0041_1903,
            0x0000_3e01,
        ];
        let bytes: Vec<u8> = info.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut kernel = Kernel::default();
        kernel.read(&bytes);
        assert_eq!(kernel.params, [(0, 8), (8, 4)]);
        assert_eq!(kernel.params_bytes, 0x41);
        assert_eq!(kernel.max_threads, Some([256, 1, 1]));
        assert!(kernel.explicit_cluster);
    }

    #[test]
    fn large_parameters_have_a_form_of_their_own() {
        let words: [u32; 4] = [0x000c_4504, 0, 0x1770_0001, 4];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut kernel = Kernel::default();
        kernel.read(&bytes);
        assert_eq!(kernel.params, [(6000, 4)]);
    }

    #[test]
    fn cut_attributes_end_the_section() {
        let bytes = [4, 0x17, 12, 0, 1, 2];
        assert_eq!(attributes(&bytes).count(), 0);
        assert_eq!(attributes(&[1, 0x3e]).count(), 0);
    }
}
