//! The kernels' texts are PTX that this project's compiler takes, for every kernel that there is.

use super::Source;
use super::elementwise::{MatrixKernel, MatrixOperation, Shape};
use super::epilogue::{Activation, Epilogue};
use super::factor::{Exchange, Factor, Singular};
use super::panels::{Operand, Pack, PanelProduct};
use super::product::DirectProduct;
use super::reduction::{Reduced, Reduction};
use super::triangular::{Solve, SymmetricVector};
use super::vector::{VectorKernel, VectorOperation};
use crate::abi::{Diagonal, Element, Side, Triangle, compute_type};

const FLOATS: [Element; 4] = [Element::F32, Element::F64, Element::C32, Element::C64];
const TRIANGLES: [Triangle; 2] = [Triangle::Lower, Triangle::Upper];
const FLAGS: [bool; 2] = [false, true];

/// Lowers a kernel to the software GPU's intermediate form, whose verifier checks the type of every
/// value.
fn check(name: &str, source: &Source) {
    let text = &source.text;
    let module = sluice_ptx::parse(text).unwrap_or_else(|error| panic!("{name}: {error:?}\n{text}"));
    let kernel = sluice_ir::lower::lower_kernel(&module, name)
        .unwrap_or_else(|error| panic!("{name}: {error:?}\n{text}"));
    sluice_ir::verify::verify(&kernel).unwrap_or_else(|error| panic!("{name}: {error:?}\n{text}"));
}

#[test]
fn products_of_all_types_compile() {
    // Types of A and B, of C, and the compute type.
    let types = [
        (Element::F16, Element::F16, 64),
        (Element::F16, Element::F32, 68),
        (Element::Bf16, Element::Bf16, 68),
        (Element::I8, Element::F32, 68),
        (Element::I8, Element::I32, 72),
        (Element::F32, Element::F32, 68),
        (Element::F64, Element::F64, 70),
        (Element::C32, Element::C32, 68),
        (Element::C64, Element::C64, 70),
    ];
    for (operand, c, compute) in types {
        let (scalar, domain) = compute_type(compute, c.is_complex()).expect("a compute type");
        for (conjugates, by_pointers) in FLAGS.into_iter().zip(FLAGS) {
            for triangle in [None, Some(Triangle::Lower), Some(Triangle::Upper)] {
                let kernel = DirectProduct {
                    a: operand,
                    b: operand,
                    c,
                    scalar,
                    domain,
                    conjugate_a: conjugates,
                    conjugate_b: !conjugates,
                    unit_a: conjugates,
                    unit_c: !conjugates,
                    by_pointers,
                    triangle,
                    is_hermitian: triangle.is_some(),
                };
                check(&kernel.name(), &kernel.source(&kernel.name()));
            }
        }
    }
}

#[test]
fn products_of_panels_compile() {
    let types = [
        (Element::F16, Element::F16, 64),
        (Element::Bf16, Element::F32, 68),
        (Element::I8, Element::F32, 68),
        (Element::F32, Element::F32, 68),
        (Element::F64, Element::F64, 70),
        (Element::C32, Element::C32, 68),
        (Element::C64, Element::C64, 70),
    ];
    for (element, c, compute) in types {
        let (scalar, domain) = compute_type(compute, c.is_complex()).expect("a compute type");
        for flag in FLAGS {
            for along_sums in FLAGS {
                for operand in [Operand::A, Operand::B] {
                    let pack =
                        Pack { operand, element, domain, conjugates: flag, along_sums, by_pointers: flag };
                    check(&pack.name(), &pack.source(&pack.name()));
                }
            }
            let triangle = flag.then_some(Triangle::Upper);
            let kernel = PanelProduct { c, scalar, domain, by_pointers: flag, triangle, is_hermitian: flag };
            check(&kernel.name(), &kernel.source(&kernel.name()));
        }
    }
}

#[test]
fn operations_on_vectors_compile() {
    let operations = [
        VectorOperation::Axpy,
        VectorOperation::Scale,
        VectorOperation::Copy,
        VectorOperation::Swap,
        VectorOperation::Rotate,
    ];
    for operation in operations {
        for element in FLOATS {
            for scalars in [[element; 2], [element.component(), element], [element.component(); 2]] {
                for is_unit in FLAGS {
                    let domain = element.domain();
                    let kernel = VectorKernel { operation, x: element, y: element, scalars, domain, is_unit };
                    check(&kernel.name(), &kernel.source(&kernel.name()));
                }
            }
        }
    }
}

#[test]
fn reductions_compile() {
    let all = [
        (Reduced::Dot, None),
        (Reduced::ConjugateDot, None),
        (Reduced::AbsoluteSum, None),
        (Reduced::Norm, None),
        (Reduced::LargestIndex, Some(Element::I32)),
        (Reduced::SmallestIndex, Some(Element::I64)),
    ];
    for (reduced, index) in all {
        for element in FLOATS {
            for is_unit in FLAGS {
                let keeps_type = matches!(reduced, Reduced::Dot | Reduced::ConjugateDot);
                let own = if keeps_type { element } else { element.component() };
                let kernel = Reduction { reduced, element, result: index.unwrap_or(own), is_unit };
                let (first, last) = (kernel.name("first"), kernel.name("last"));
                check(&first, &kernel.first_source(&first));
                check(&last, &kernel.last_source(&last));
            }
        }
    }
}

#[test]
fn operations_on_matrices_compile() {
    let operations = [
        MatrixOperation::Sum { conjugates: [false, true] },
        MatrixOperation::Scale(Side::Left),
        MatrixOperation::Scale(Side::Right),
        MatrixOperation::Pack(Triangle::Lower),
        MatrixOperation::Pack(Triangle::Upper),
        MatrixOperation::Unpack(Triangle::Lower),
        MatrixOperation::Unpack(Triangle::Upper),
        MatrixOperation::Expand(Triangle::Lower, Shape::Symmetric),
        MatrixOperation::Expand(Triangle::Upper, Shape::Hermitian),
        MatrixOperation::Expand(Triangle::Lower, Shape::Triangular),
        MatrixOperation::Expand(Triangle::Upper, Shape::UnitTriangular),
    ];
    for operation in operations {
        for element in FLOATS {
            let kernel = MatrixKernel { operation, element };
            check(&kernel.name(), &kernel.source(&kernel.name()));
        }
    }
}

#[test]
fn factors_compile() {
    for element in FLOATS {
        let singular = Singular { element };
        check(&singular.name(), &singular.source(&singular.name()));
        for flag in FLAGS {
            let factor = Factor { element, has_pivots: flag };
            check(&factor.name(), &factor.source(&factor.name()));
            for backward in FLAGS {
                let exchange = Exchange { element, has_pivots: true, backward, of_identity: flag };
                check(&exchange.name(), &exchange.source(&exchange.name()));
            }
        }
    }
}

#[test]
fn epilogues_compile() {
    for (source, destination) in [
        (Element::F32, Element::F16),
        (Element::F32, Element::Bf16),
        (Element::F64, Element::F64),
        (Element::I32, Element::I32),
        (Element::C64, Element::C64),
    ] {
        for activation in [Activation::None, Activation::Relu, Activation::Gelu] {
            for bias in [None, Some(destination)] {
                let domain = source.domain();
                let kernel = Epilogue { source, destination, domain, bias, activation };
                check(&kernel.name(), &kernel.source(&kernel.name()));
            }
        }
    }
}

#[test]
fn triangular_and_symmetric_kernels_compile() {
    for element in FLOATS {
        for triangle in TRIANGLES {
            for flag in FLAGS {
                let diagonal = if flag { Diagonal::Unit } else { Diagonal::NonUnit };
                let solve = Solve {
                    element,
                    triangle,
                    diagonal,
                    conjugates: flag,
                    is_unit: flag,
                    by_pointers: !flag,
                };
                check(&solve.name(), &solve.source(&solve.name()));
                for is_band in FLAGS {
                    let kernel = SymmetricVector { element, triangle, is_hermitian: flag, is_band };
                    check(&kernel.name(), &kernel.source(&kernel.name()));
                }
            }
        }
    }
}

#[test]
fn the_text_of_a_small_kernel_is_as_expected() {
    let kernel = VectorKernel {
        operation: VectorOperation::Copy,
        x: Element::Bf16,
        y: Element::F16,
        scalars: [Element::F32; 2],
        domain: Element::F32.domain(),
        is_unit: true,
    };
    let text = kernel.source("copy").text;
    assert!(text.contains(".visible .entry copy(\n    .param .u64 copy_0,\n"), "{text}");
    assert!(text.contains("cvt.rn.f16.f32"), "{text}");
    assert!(text.contains("ld.global.b16"), "{text}");
    assert!(!text.contains("cvt.f32.bf16"), "a bfloat16 is the upper half of a float\n{text}");
}
