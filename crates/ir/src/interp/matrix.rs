//! Products of matrices, element by element.

use super::scalar;
use crate::matrix::{MatrixElement, MatrixForm};
use crate::{ConvertOp, Rounding, Type};

/// D of a warp: the registers of all 32 lanes. `register` gives a lane's bits of an argument.
pub(super) fn multiply(form: MatrixForm, register: impl Fn(usize, usize) -> u32) -> Vec<[u32; 32]> {
    let (m_tiles, chunks) = (usize::from(form.m) / 8, form.chunks());
    let (b_first, c_first) = (form.a_registers(), form.a_registers() + form.b_registers());
    let elements = form.a.per_register() as usize;
    // The chunk, the lane's place in its group of four, and the element of column k of A.
    let split = |k: usize| (k / (4 * elements), k / elements % 4, k % elements);
    let factor_a = |row: usize, k: usize| {
        let (chunk, t, element) = split(k);
        number(form.a, register(chunk * m_tiles + row / 8, row % 8 * 4 + t), element)
    };
    let factor_b = |k: usize, column: usize| {
        let (chunk, t, element) = split(k);
        number(form.b, register(b_first + column / 8 * chunks + chunk, column % 8 * 4 + t), element)
    };
    let sum = |at: usize, lane: usize| {
        let (tile, i) = (at / 2, at % 2);
        let row = tile % m_tiles * 8 + lane / 4;
        let column = tile / m_tiles * 8 + lane % 4 * 2 + i;
        let mut sum = u64::from(register(c_first + at, lane));
        for k in 0..usize::from(form.k) {
            let (x, y) = (factor_a(row, k), factor_b(k, column));
            sum = match form.sum_type() {
                Type::I32 => u64::from((sum as u32).wrapping_add((x as u32).wrapping_mul(y as u32))),
                ty => scalar::fma(Rounding::Near, ty, [x, y, sum]),
            };
        }
        sum as u32
    };
    (0..form.sums()).map(|at| std::array::from_fn(|lane| sum(at, lane))).collect()
}

/// An element of a register: the bits of an F32, or an I32.
fn number(element: MatrixElement, register: u32, at: usize) -> u64 {
    let part = |bits: usize| register.wrapping_shr((bits * at) as u32);
    let (half, byte) = (u64::from(part(16) as u16), part(8) as u8);
    match element {
        MatrixElement::Half => scalar::convert(ConvertOp::HalfToFloat, Type::I16, Type::F32, half),
        MatrixElement::Bfloat => scalar::convert(ConvertOp::BfloatToFloat, Type::I16, Type::F32, half),
        MatrixElement::Tf32 => u64::from(register & 0xffff_e000),
        MatrixElement::S8 => u64::from(byte as i8 as u32),
        MatrixElement::U8 => u64::from(byte),
    }
}
