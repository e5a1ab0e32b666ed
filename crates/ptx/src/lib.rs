//! PTX, read: from text to a syntax tree whose names are already resolved.
//!
//! A module is read in two steps, because real images hold hundreds of kernels in tens of megabytes
//! of text and a program launches a handful of them:
//!
//! 1. [`ModuleIndex::new`] runs once over the text when a module is loaded. It finds where each
//!    entry, function and variable begins and ends, and lays out the parameters of entries.
//! 2. [`ModuleIndex::closure`] parses one entry, and what it refers to, when that entry is first
//!    used.
//!
//! [`parse()`] does the whole of a text at once. All of it takes bytes that were not checked:
//! whatever they are, the answer is a tree or a [`ParseError`] that says where, and memory grows
//! with the text, never with a number in it.

pub mod ast;
pub mod device_runtime;
mod error;
mod index;
mod lex;
pub mod link;
mod mnemonic;
mod parse;
mod source_lines;
mod tuning;

pub use error::{ParseError, ParseErrorKind, STATIC_SHARED_MAX};
pub use index::{ClosureError, ModuleIndex};
pub use mnemonic::{Modifier, Opcode, Space, SpecialRegister, Type};
pub use parse::parse;
pub use source_lines::SourceLines;
pub use tuning::Tuning;
