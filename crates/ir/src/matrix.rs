//! Products of matrices by a warp ([`Inst::MatrixMultiply`](crate::Inst::MatrixMultiply)).
//!
//! All fragments have one layout. With g = lane / 4 and t = lane % 4, and E elements of an operand
//! per register:
//!
//! | | register | row | column |
//! |---|---|---|---|
//! | A (M x K) | r * (M / 8) + m | 8m + g | 4Er + Et + element |
//! | B (K x N) | n * (K / 4E) + r | 4Er + Et + element | 8n + g |
//! | C, D (M x N) | (n * (M / 8) + m) * 2 + i | 8m + g | 8n + 2t + i |
//!
//! which is what PTX prescribes for `mma` (PTX ISA, "Warp Level Matrix Instructions"); for `wmma`
//! it is ours to choose.

use crate::types::Type;

/// What the bits of an element of A or B mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixElement {
    /// 16 bits, IEEE.
    Half,
    Bfloat,
    /// 32 bits, of which the low 13 are not looked at.
    Tf32,
    /// 8 bits.
    S8,
    U8,
}

impl MatrixElement {
    pub const ALL: [MatrixElement; 5] = [
        MatrixElement::Half,
        MatrixElement::Bfloat,
        MatrixElement::Tf32,
        MatrixElement::S8,
        MatrixElement::U8,
    ];

    /// Elements in a register of 32 bits.
    pub fn per_register(self) -> u32 {
        match self {
            MatrixElement::Tf32 => 1,
            MatrixElement::Half | MatrixElement::Bfloat => 2,
            MatrixElement::S8 | MatrixElement::U8 => 4,
        }
    }

    pub fn is_integer(self) -> bool {
        matches!(self, MatrixElement::S8 | MatrixElement::U8)
    }
}

/// Shape and types of a multiplication: A is M x K, B is K x N, C and D are M x N, as 32-bit
/// integers for integers and as F32 for all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixForm {
    pub m: u8,
    pub n: u8,
    pub k: u8,
    pub a: MatrixElement,
    pub b: MatrixElement,
}

impl MatrixForm {
    /// The largest M, N and K.
    pub const SIDE_MAX: u8 = 32;

    /// Whether the fragments fill their registers in all lanes.
    pub fn is_valid(&self) -> bool {
        let depth = 4 * self.a.per_register();
        let [m, n, k] = [self.m, self.n, self.k].map(u32::from);
        let are_alike =
            self.a.per_register() == self.b.per_register() && self.a.is_integer() == self.b.is_integer();
        let are_whole = m % 8 == 0 && n % 8 == 0 && k % depth == 0 && m * n * k > 0;
        are_alike && are_whole && [m, n, k].iter().all(|&side| side <= u32::from(Self::SIDE_MAX))
    }

    pub fn sum_type(&self) -> Type {
        if self.a.is_integer() { Type::I32 } else { Type::F32 }
    }

    /// Registers of A in each lane.
    pub fn a_registers(&self) -> usize {
        usize::from(self.m / 8) * self.chunks()
    }

    /// Registers of B in each lane.
    pub fn b_registers(&self) -> usize {
        usize::from(self.n / 8) * self.chunks()
    }

    /// Registers of C, and of D, in each lane.
    pub fn sums(&self) -> usize {
        usize::from(self.m / 8) * usize::from(self.n / 8) * 2
    }

    /// Registers that K takes.
    pub fn chunks(&self) -> usize {
        usize::from(self.k) / (4 * self.a.per_register() as usize)
    }

    /// All of it in a word, for compiled code.
    pub fn to_bits(self) -> u32 {
        u32::from_le_bytes([self.m, self.n, self.k, self.a as u8 | (self.b as u8) << 4])
    }

    /// What [`MatrixForm::to_bits`] gave.
    pub fn from_bits(bits: u32) -> Option<MatrixForm> {
        let [m, n, k, elements] = bits.to_le_bytes();
        let element = |at: u8| MatrixElement::ALL.get(usize::from(at)).copied();
        let form = MatrixForm { m, n, k, a: element(elements & 15)?, b: element(elements >> 4)? };
        form.is_valid().then_some(form)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_survive_a_word() {
        for (a, b) in [(MatrixElement::Half, MatrixElement::Half), (MatrixElement::S8, MatrixElement::U8)] {
            let form = MatrixForm { m: 16, n: 8, k: 32, a, b };
            assert!(form.is_valid());
            assert_eq!(MatrixForm::from_bits(form.to_bits()), Some(form));
        }
        assert_eq!(MatrixForm::from_bits(0), None);
        assert_eq!(MatrixForm::from_bits(u32::MAX), None);
    }

    #[test]
    fn fragments_have_the_registers_that_ptx_says() {
        let form = |k, element| MatrixForm { m: 16, n: 8, k, a: element, b: element };
        let registers = |form: MatrixForm| (form.a_registers(), form.b_registers(), form.sums());
        assert_eq!(registers(form(16, MatrixElement::Half)), (4, 2, 4));
        assert_eq!(registers(form(8, MatrixElement::Tf32)), (4, 2, 4));
        assert_eq!(registers(form(32, MatrixElement::U8)), (4, 2, 4));
    }
}
