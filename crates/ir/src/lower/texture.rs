//! Textures and surfaces (PTX ISA, "Texture Instructions" and "Surface Instructions"): an image is
//! a number in a register, or what is bound to a reference of the module, which is its number too.
//! What elements come of coordinates is the runtime's to say ([`crate::texture`]).

use sluice_ptx::ast::{Instruction, Operand, Symbol};
use sluice_ptx::{Modifier, Opcode, Type as PtxType};

use super::layout::Reference;
use super::{Lowered, Lowering, choose, malformed, operand, unsupported};
use crate::inst::{Inst, RuntimeFunction};
use crate::texture::{Geometry, Outside, Sampling, SurfaceAccess};
use crate::types::{Type, Value};

const GEOMETRIES: &[(Modifier, Geometry)] = &[
    (Modifier::D1, Geometry::D1),
    (Modifier::D2, Geometry::D2),
    (Modifier::D3, Geometry::D3),
    (Modifier::A1d, Geometry::A1),
    (Modifier::A2d, Geometry::A2),
    (Modifier::Cube, Geometry::Cube),
];

/// A single reference, not an array of them.
const REFERENCE_BYTES: u64 = 8;

/// How many coordinates count; vectors of four repeat the last.
fn coordinates(geometry: Geometry) -> usize {
    match geometry {
        Geometry::D1 => 1,
        Geometry::D2 | Geometry::A1 => 2,
        Geometry::D3 | Geometry::A2 | Geometry::Cube => 3,
    }
}

/// The types that an instruction names, in their order.
fn types(i: &Instruction) -> Vec<PtxType> {
    let named = |modifier: &Modifier| match modifier {
        Modifier::Type(ty) => Some(*ty),
        _ => None,
    };
    i.modifiers.iter().filter_map(named).collect()
}

fn parts(operand: &Operand) -> &[Operand] {
    match operand {
        Operand::Vector(parts) => parts,
        single => std::slice::from_ref(single),
    }
}

impl Lowering<'_> {
    /// `tex[.level].geom.v4.dtype.ctype d, [object, c][, level]` and
    /// `tld4.comp.2d.v4.dtype.f32 d, [object, c]`.
    pub(super) fn texture(&mut self, i: &Instruction) -> Lowered {
        let geometry = choose(i, GEOMETRIES).ok_or_else(|| unsupported(i))?;
        let is_gather = i.opcode == Opcode::Tld4;
        let gathered =
            choose(i, &[(Modifier::Right, 0), (Modifier::G, 1), (Modifier::B, 2), (Modifier::A, 3)]);
        let [result_type, coordinate_type] = types(i)[..] else { return Err(malformed(i)) };
        let is_known = matches!(result_type, PtxType::F32 | PtxType::S32 | PtxType::U32)
            && matches!(coordinate_type, PtxType::F32 | PtxType::S32);
        let (base, has_level) = (i.has(Modifier::Base), i.has(Modifier::Level));
        if !is_known
            || i.has(Modifier::Grad)
            || !i.has(Modifier::V4)
            || (is_gather && geometry != Geometry::D2)
        {
            return Err(unsupported(i));
        }
        let Operand::Bracketed(inside) = operand(i, 1)? else { return Err(malformed(i)) };
        // With a sampler of its own, or an offset or a depth to compare with behind it, it is
        // another instruction.
        let [object, place] = &inside[..] else { return Err(unsupported(i)) };
        if i.operands.len() > if has_level || base { 3 } else { 2 } {
            return Err(unsupported(i));
        }
        let sampling = Sampling {
            geometry,
            has_integer_coordinates: coordinate_type == PtxType::S32,
            has_level,
            gathered: gathered.filter(|_| is_gather),
        };
        let object = self.image(i, object, Reference::Texture)?;
        let place = self.coordinates(i, place, geometry)?;
        let level = if has_level { self.read(operand(i, 2)?, Type::F32)? } else { self.build().f32(0.0) };
        let level = self.build().bitcast(Type::I32, level);
        let results = parts(operand(i, 0)?);
        if results.len() != 4 {
            return Err(malformed(i));
        }
        let sample = self.build().push(Inst::Sample { sampling, object, place, level });
        let values: Vec<Value> = self.kernel.inst(sample).results().collect();
        for (result, value) in results.iter().zip(values) {
            self.write(result, value)?;
        }
        Ok(())
    }

    /// `suld.b.geom.vec.type.mode d, [object, c]`.
    pub(super) fn surface_load(&mut self, i: &Instruction) -> Lowered {
        let Operand::Bracketed(inside) = operand(i, 1)? else { return Err(malformed(i)) };
        let results = parts(operand(i, 0)?);
        let access = surface_access(i, results.len())?;
        let [object, place] = &inside[..] else { return Err(malformed(i)) };
        let object = self.image(i, object, Reference::Surface)?;
        let place = self.coordinates(i, place, access.geometry)?;
        let halves = if access.bytes == 16 { 2 } else { 1 };
        for (half, results) in results.chunks(results.len() / halves).enumerate() {
            let how = self.build().i32(SurfaceAccess { is_second_half: half == 1, ..access }.to_bits());
            let [x, y, z] = place;
            let args = Box::new([object, how, x, y, z]);
            let word = self.build().value(Inst::CallRuntime { function: RuntimeFunction::SurfaceLoad, args });
            let ty = Type::int_of_bits(access.bytes.min(8) * 8).ok_or_else(|| malformed(i))?;
            let word = self.build().resize(ty, false, word);
            self.unpack(results, word)?;
        }
        Ok(())
    }

    /// `sust.b.geom.vec.type.mode [object, c], s`.
    pub(super) fn surface_store(&mut self, i: &Instruction) -> Lowered {
        let Operand::Bracketed(inside) = operand(i, 0)? else { return Err(malformed(i)) };
        let sources = parts(operand(i, 1)?);
        let access = surface_access(i, sources.len())?;
        let [object, place] = &inside[..] else { return Err(malformed(i)) };
        let object = self.image(i, object, Reference::Surface)?;
        let place = self.coordinates(i, place, access.geometry)?;
        let halves = if access.bytes == 16 { 2 } else { 1 };
        let ty = Type::int_of_bits(access.bytes.min(8) * 8).ok_or_else(|| malformed(i))?;
        let mut words = [self.build().i64(0); 2];
        for (sources, word) in sources.chunks(sources.len() / halves).zip(&mut words) {
            let packed = self.pack(sources, ty)?;
            *word = self.build().resize(Type::I64, false, packed);
        }
        let how = self.build().i32(access.to_bits());
        let ([x, y, z], [low, high]) = (place, words);
        let args = Box::new([object, how, x, y, z, low, high]);
        self.build().push(Inst::CallRuntime { function: RuntimeFunction::SurfaceStore, args });
        Ok(())
    }

    /// The number of an image: of an object that the program was given, or of what is bound to a
    /// reference of this kind.
    fn image(&mut self, i: &Instruction, object: &Operand, kind: Reference) -> Lowered<Value> {
        match object {
            Operand::Register(_) => self.read(object, Type::I64),
            Operand::Symbol { symbol: Symbol::Module(name), offset: 0 } => {
                let variable = self.module.variable(name).filter(|v| Reference::of(v) == Some(kind));
                if variable.is_none_or(|variable| variable.is_unsized || variable.size > REFERENCE_BYTES) {
                    return Err(unsupported(i));
                }
                self.read(object, Type::I64)
            }
            _ => Err(unsupported(i)),
        }
    }

    /// Three words: integers, or the bits of floats.
    fn coordinates(&mut self, i: &Instruction, place: &Operand, geometry: Geometry) -> Lowered<[Value; 3]> {
        let given = parts(place);
        let wanted = coordinates(geometry);
        let mut words = [self.build().i32(0); 3];
        if given.len() < wanted {
            return Err(malformed(i));
        }
        for (word, coordinate) in words.iter_mut().zip(&given[..wanted]) {
            *word = self.read(coordinate, Type::I32)?;
        }
        Ok(words)
    }
}

fn surface_access(i: &Instruction, elements: usize) -> Lowered<SurfaceAccess> {
    let geometry = choose(i, GEOMETRIES).ok_or_else(|| unsupported(i))?;
    let outside = choose(
        i,
        &[
            (Modifier::Trap, Outside::Trap),
            (Modifier::Clamp, Outside::Clamp),
            (Modifier::Zero, Outside::Zero),
        ],
    );
    let [ty] = types(i)[..] else { return Err(malformed(i)) };
    let bytes = ty.bits() / 8 * elements as u32;
    if !i.has(Modifier::B) || geometry == Geometry::Cube || !matches!(bytes, 1 | 2 | 4 | 8 | 16) {
        return Err(unsupported(i));
    }
    Ok(SurfaceAccess { geometry, outside: outside.unwrap_or(Outside::Trap), bytes, is_second_half: false })
}
