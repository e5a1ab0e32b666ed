//! What PTX means, as a suite of cases: each runs on the reference interpreter and as compiled
//! code. Beside them, random kernels ([`fuzz`]).
//!
//! Nothing here is part of the product. `cargo test -p sluice-ptx-cases` finds every file beneath
//! `cases/` by itself; to add a case, add a file or a paragraph of one. Expected values come from
//! the PTX ISA, never from what our code printed.
//!
//! # Tables: `cases/tables/*.table`
//! One instruction, or a few in a row, and what they make of given values. A table is a paragraph:
//!
//! ```text
//! # A comment.
//! [add.T for T: u32 s32]
//! a: T, b: T -> d: T
//!     add.T d, a, b;
//! 1    2 -> 3
//! max  1 -> min
//! random 20 -> (a + b)
//! ```
//!
//! The name in brackets is made from once per type behind `for`, and the word it stands for is
//! replaced in the whole paragraph. The second line names the registers, inputs before the arrow.
//! Then comes PTX, up to the first row. `within 2 ulp` or `within 1e-6` behind the outputs allows
//! for errors. See [`table`] for the kernels that are made of a table: each row is computed by a
//! lane, by a warp, from constants, and under a guard.
//!
//! # Kernels: `cases/kernels/*.ptx`
//! PTX modules with directions in comments:
//!
//! ```text
//! // run: saxpy grid=2 block=64 / 8,8
//! //   y: f32[100] = (2*i) -> (3*x[i] + 2*i)
//! //   x: f32[100] = (i)
//! //   n: u32 = 100
//! ```
//!
//! `run:` names the entry and the launch; shapes of blocks separated by `/` are all tried. Further
//! keys are `shared` (dynamic bytes), `stack` (bytes per thread, 1024 unless given),
//! `cooperative=yes`, `finds=KINDS` (what the sanitizer reports, with commas between) and
//! `interp=no` (for what the interpreter does not have). Below stand the parameters in order:
//! `T[N]` is a buffer of N elements passed by address, `T{N}` an array and `T` a number passed by
//! value. Behind `=` stands the content before, behind `->` the one expected afterwards; without an
//! arrow a buffer must stay as it is, `-> ?` asks only that all back ends agree, `-> *` nothing. A
//! line `-> fault KIND` expects a failure ([`machine::Fault`]), `-> refused WORDS` an error of the
//! compiler that contains the words, `-> prints "TEXT"` output of `vprintf`.
//!
//! # Contents
//! Values are separated by blanks: numbers, `0x` and bits (of floats too), `min`, `max`, `inf`,
//! `nan` (any), `1:2` for packed pairs; `3x7` is three sevens; `(EXPR)` computes an element from
//! its index `i` and the contents that the buffers had at the start (see [`expression`]), to the
//! buffer's end; `random` and `random:SEED` fill likewise. A buffer that is not filled continues
//! with zeros.

pub mod content;
pub mod expression;
pub mod fuzz;
pub mod kernel;
pub mod literal;
pub mod machine;
pub mod table;
