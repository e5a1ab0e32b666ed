//! What `driver.api` does not say of arguments: structures and what they point to, lists, and
//! numbers with a meaning. One trait for each section of the list, which the generated part has.

mod arrays;
mod devices;
mod graphs;
mod memory;
mod modules;
mod streams;

use crate::generated::{LibrariesAndKernels, Linker, ManagedMemory, MemoryPoolsAndStreamOrderedAllocation};

/// The checks by hand.
pub(crate) struct ByHand;

// Sections of which the list says all.
impl LibrariesAndKernels for ByHand {}
impl Linker for ByHand {}
impl MemoryPoolsAndStreamOrderedAllocation for ByHand {}
impl ManagedMemory for ByHand {}
