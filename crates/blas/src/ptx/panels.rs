//! Products of large matrices: both are copied to panels first, then multiplied.
//!
//! A panel has [`ROWS`] rows of `op(A)`, or as many columns of `op(B)` as a thread has sums. For
//! each step of the sums it holds the elements of its rows, one behind the other, as numbers of the
//! arithmetic's real type. Panels are filled with zeros up to their width and to a multiple of
//! [`UNROLLED`] steps. So the loop of the product reads both with constant distances, which is what
//! the software GPU turns into its multiply-add tiles (`crates/jit`, "chains").
//!
//! A complex product is a real one of twice the steps and twice the columns: a column of A becomes
//! the two of its real and imaginary parts, and an element `x + iy` of B becomes
//! `[[x, y], [-y, x]]`.

use super::emit;
use super::{Class, Register, Scalar, Source, Value, Writer};
use crate::abi::{Domain, Element, Real, Triangle};

/// The rows of a panel of A: the lanes of a warp.
pub(crate) const ROWS: u32 = 32;

/// The steps that the product's loop takes at a time.
pub(crate) const UNROLLED: u32 = 32;

/// The sums of a thread, in columns of reals: as many as the tile keeps in registers. Of doubles it
/// keeps half as many and reads a part of a panel of A twice, from the first-level cache.
pub(crate) const COLUMNS: u32 = 8;

/// Which operand a panel is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    A,
    B,
}

/// Copies a matrix to panels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pack {
    pub(crate) operand: Operand,
    pub(crate) element: Element,
    pub(crate) domain: Domain,
    pub(crate) conjugates: bool,
    /// Whether it is the steps of the sums that are neighbours in memory, and not the rows of A or
    /// the columns of B.
    pub(crate) along_sums: bool,
    pub(crate) by_pointers: bool,
}

impl Pack {
    pub(crate) fn name(&self) -> String {
        format!(
            "sluice_pack_{:?}_{}_{}_{}{}{}",
            self.operand,
            self.element.name(),
            self.domain.element().name(),
            u8::from(self.conjugates),
            u8::from(self.along_sums),
            u8::from(self.by_pointers)
        )
    }

    /// Elements of the matrix in a panel's width, and reals for each of them in a panel's width and
    /// in its steps.
    fn shape(&self) -> (u32, u32, u32) {
        let parts = if self.domain.is_complex { 2 } else { 1 };
        match self.operand {
            Operand::A => (ROWS, 1, parts),
            Operand::B => (COLUMNS / parts, parts, parts),
        }
    }

    /// Steps of the sums, in reals, that a warp should copy. They are few where rows are neighbours
    /// in memory, so that consecutive blocks, which have consecutive panels, read neighbours while
    /// the processor still has their pages and prefetches them.
    pub(crate) fn steps_of_warp(&self) -> u64 {
        let (_, _, along) = self.shape();
        u64::from(along) * if self.along_sums { 32 } else { 4 }
    }

    /// Parameters: the matrix, the elements to skip, the distance from one matrix of a batch to the
    /// next; the panels and how many bytes those of a matrix have; the rows or columns, the length
    /// of the sums and of the panels; the distances between rows and between steps; the number of
    /// panels and of matrices.
    ///
    /// Blocks have 32 x 8 threads; x counts panels, y steps and z matrices.
    pub(crate) fn source(&self, name: &str) -> Source {
        let mut writer = Writer::new(name);
        let w = &mut writer;
        let [matrix, skipped, stride, panels, panels_bytes] = w.params();
        let [rows, length, padded, row_step, sum_step, count, batch] = w.params();
        let (width, across, along) = self.shape();
        let real_bytes = self.domain.real.bytes();
        let step_bytes = u64::from(width * across) * real_bytes;
        let (x, y) = (w.special("tid.x"), w.special("tid.y"));
        let [first_panel, first_group, item] = ["ctaid.x", "ctaid.y", "ctaid.z"].map(|name| w.special(name));
        let [panel_count, group_count, items] =
            ["nctaid.x", "nctaid.y", "nctaid.z"].map(|name| w.special(name));
        // The panels have `padded` steps of reals; a complex element has two.
        let steps = if along == 2 { w.binary("shr.s64", padded, 1) } else { padded };
        w.each(item, batch, items, |w, item| {
            let base = match self.by_pointers {
                true => {
                    let (place, pointer) = (w.address(matrix, item, 8), w.integer(0));
                    emit!(w, "ld.global.u64 {pointer}, [{place}]");
                    pointer
                }
                false => {
                    let elements = w.binary("mul.lo.s64", item, stride);
                    w.address(matrix, elements, self.element.bytes())
                }
            };
            let base = w.address(base, skipped, self.element.bytes());
            let own = w.multiply_add(item, panels_bytes, panels);
            w.each(first_panel, count, panel_count, |w, panel| {
                let first_row = w.binary("mul.lo.s64", panel, i64::from(width));
                let panel_bytes =
                    w.binary("mul.lo.s64", padded, i64::from(width * across) * real_bytes as i64);
                let target = w.multiply_add(panel, panel_bytes, own);
                let place = |w: &mut Writer, row: Register, step: Register| {
                    let row = w.binary("mul.lo.s64", row, row_step);
                    let index = w.multiply_add(step, sum_step, row);
                    w.address(base, index, self.element.bytes())
                };
                // Threads have a step of all rows each, or an element.
                let per_warp = if self.along_sums { 32 } else { 32 / width.min(32) };
                let group = w.multiply_add(first_group, 8, y);
                let groups = w.binary("mul.lo.s64", group_count, 8);
                let first = w.binary("mul.lo.s64", group, i64::from(per_warp));
                let by = w.binary("mul.lo.s64", groups, i64::from(per_warp));
                let last_row = w.add(first_row, i64::from(width));
                let has_rows = w.compare("le.s64", last_row, rows);
                w.each(first, steps, by, |w, start| {
                    // Most warps need no checks, and then no lane goes its own way.
                    let end = w.add(start, i64::from(per_warp));
                    let has_steps = w.compare("le.s64", end, length);
                    let is_whole = w.both(has_rows, has_steps);
                    let part = |w: &mut Writer, checks: Option<[Register; 3]>| {
                        self.copy(w, [first_row, start, x], checks, &place, target, step_bytes);
                    };
                    w.either(is_whole, |w| part(w, None), |w| part(w, Some([rows, length, steps])));
                });
            });
        });
        writer.finish()
    }

    /// Copies what a warp has of a panel: 32 neighbouring steps of all rows, or an element for each
    /// thread. `checks` are the rows, the length of the sums and that of the panel, where some of
    /// the elements may be beyond them.
    fn copy(
        &self,
        w: &mut Writer,
        [first_row, start, lane]: [Register; 3],
        checks: Option<[Register; 3]>,
        place: &impl Fn(&mut Writer, Register, Register) -> Register,
        target: Register,
        step_bytes: u64,
    ) {
        let (width, across, along) = self.shape();
        let (row, step) = match (self.along_sums, width) {
            (true, _) => (first_row, w.add(start, lane)),
            (false, 32) => (lane, start),
            (false, _) => {
                let row = w.binary("and.b64", lane, i64::from(width - 1));
                let step = w.binary("shr.s64", lane, i64::from(width.trailing_zeros()));
                (row, w.add(start, step))
            }
        };
        let body = |w: &mut Writer| {
            let element = |w: &mut Writer, row: Register| {
                let is_there = checks.map(|[rows, length, _]| {
                    let is_row = w.compare("lt.s64", row, rows);
                    let is_inside = w.compare("lt.s64", step, length);
                    w.both(is_row, is_inside)
                });
                let place = place(w, row, step);
                self.load(w, is_there, place)
            };
            let start = w.address(target, step, step_bytes * u64::from(along));
            if self.along_sums {
                let values: Vec<Value> = (0..width)
                    .map(|number| {
                        let row = w.add(row, number);
                        element(w, row)
                    })
                    .collect();
                return self.store(w, start, &values);
            }
            let source = w.add(first_row, row);
            let value = element(w, source);
            let place = w.address(start, row, u64::from(across) * self.domain.real.bytes());
            self.store_one(w, place, step_bytes, value);
        };
        let Some([_, _, steps]) = checks else { return body(w) };
        let is_step = w.compare("lt.s64", step, steps);
        w.when(is_step, body);
    }

    /// The element at a place, or 0 where there is none.
    fn load(&self, w: &mut Writer, is_there: Option<Register>, place: Register) -> Value {
        let Some(is_there) = is_there else { return self.load_plain(w, place) };
        let zero = self.domain.zero(w);
        let result = self.domain.variable(w, zero);
        w.when(is_there, |w| {
            let value = self.load_plain(w, place);
            self.domain.assign(w, result, value);
        });
        result
    }

    fn load_plain(&self, w: &mut Writer, place: Register) -> Value {
        let value = self.domain.load(w, self.element, place);
        if self.conjugates { self.domain.conjugate(w, value) } else { value }
    }

    /// The reals of an element: for each of its steps those across.
    fn reals(&self, w: &mut Writer, value: Value) -> Vec<Vec<Register>> {
        match (self.operand, value) {
            (_, Value::Real(value)) => vec![vec![value]],
            (Operand::A, Value::Complex(re, im)) => vec![vec![re], vec![im]],
            (Operand::B, Value::Complex(re, im)) => {
                let negative = self.domain.real.unary(w, "neg", im);
                vec![vec![re, im], vec![negative, re]]
            }
        }
    }

    fn store_one(&self, w: &mut Writer, place: Register, step_bytes: u64, value: Value) {
        let (ty, bytes) = (self.domain.real.ty(), self.domain.real.bytes());
        for (step, across) in self.reals(w, value).into_iter().enumerate() {
            for (number, real) in across.into_iter().enumerate() {
                let offset = step as u64 * step_bytes + number as u64 * bytes;
                emit!(w, "st.global.{ty} [{place}+{offset}], {real}");
            }
        }
    }

    /// Stores all elements of a step, 16 bytes at a time.
    fn store(&self, w: &mut Writer, place: Register, values: &[Value]) {
        let (ty, bytes) = (self.domain.real.ty(), self.domain.real.bytes());
        let all: Vec<Vec<Vec<Register>>> = values.iter().map(|&value| self.reals(w, value)).collect();
        let steps = all.first().map_or(0, Vec::len);
        let per_store = (16 / bytes) as usize;
        let mut offset = 0;
        for step in 0..steps {
            let reals: Vec<Register> = all.iter().flat_map(|value| value[step].clone()).collect();
            for group in reals.chunks(per_store) {
                let list: Vec<String> = group.iter().map(Register::to_string).collect();
                emit!(w, "st.global.v{}.{ty} [{place}+{offset}], {{{}}}", group.len(), list.join(", "));
                offset += group.len() as u64 * bytes;
            }
        }
    }
}

/// Multiplies panels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PanelProduct {
    pub(crate) c: Element,
    pub(crate) scalar: Element,
    pub(crate) domain: Domain,
    pub(crate) by_pointers: bool,
    pub(crate) triangle: Option<Triangle>,
    pub(crate) is_hermitian: bool,
}

impl PanelProduct {
    pub(crate) fn name(&self) -> String {
        format!(
            "sluice_panels_{}_{}_{}_{}{}{}",
            self.c.name(),
            self.scalar.name(),
            self.domain.element().name(),
            u8::from(self.by_pointers),
            self.triangle.map_or(2, |triangle| triangle as u8),
            u8::from(self.is_hermitian)
        )
    }

    /// Parameters: the panels of A and of B and how many bytes those of a product have; C, the
    /// elements to skip, the distance from one matrix to the next and from one column to the next;
    /// `alpha`, `beta`; the rows and columns of C, the length of the panels; the first row and
    /// column in the whole C.
    ///
    /// Blocks have one warp, which has a panel of A and one of B; x counts panels of B, y panels of
    /// A and z products.
    pub(crate) fn source(&self, name: &str) -> Source {
        let mut writer = Writer::new(name);
        let w = &mut writer;
        let [a, b, a_bytes, b_bytes] = w.params();
        let [c, skipped, stride, leading] = w.params();
        let scalars = [Scalar::param(w), Scalar::param(w)];
        let [rows, columns_of_c, padded, first_row, first_column] = w.params();
        let (real, parts) = (self.domain.real, if self.domain.is_complex { 2 } else { 1 });
        let (width, bytes) = (COLUMNS, real.bytes());
        let lane = w.special("tid.x");
        let [b_panel, a_panel, item] = ["ctaid.x", "ctaid.y", "ctaid.z"].map(|name| w.special(name));

        let a_step = i64::from(ROWS) * bytes as i64;
        let a_panel_bytes = w.binary("mul.lo.s64", padded, a_step);
        let a = w.multiply_add(item, a_bytes, a);
        let a = w.multiply_add(a_panel, a_panel_bytes, a);
        let a = w.address(a, lane, bytes);
        let b_step = i64::from(width) * bytes as i64;
        let b_panel_bytes = w.binary("mul.lo.s64", padded, b_step);
        let b = w.multiply_add(item, b_bytes, b);
        let b = w.multiply_add(b_panel, b_panel_bytes, b);
        let sums = self.sums(w, [a, b], padded);

        let base = match self.by_pointers {
            true => {
                let (place, pointer) = (w.address(c, item, 8), w.integer(0));
                emit!(w, "ld.global.u64 {pointer}, [{place}]");
                pointer
            }
            false => {
                let elements = w.binary("mul.lo.s64", item, stride);
                w.address(c, elements, self.c.bytes())
            }
        };
        let base = w.address(base, skipped, self.c.bytes());
        let [alpha, beta] = scalars.map(|scalar| scalar.value(w, self.scalar, self.domain));
        let i = w.multiply_add(a_panel, i64::from(ROWS), lane);
        let j = w.binary("mul.lo.s64", b_panel, i64::from(width / parts));
        let is_row = w.compare("lt.s64", i, rows);
        let end = w.add(j, width / parts);
        let has_columns = w.compare("le.s64", end, columns_of_c);
        let has_alpha = self.domain.is_non_zero(w, alpha);
        let has_beta = self.domain.is_non_zero(w, beta);
        // Without alpha neither A nor B counts, whatever is in them (BLAS: GEMM).
        let products: Vec<Value> = sums
            .chunks(parts as usize)
            .map(|parts| {
                let sum = match *parts {
                    [re, im] => Value::Complex(re, im),
                    _ => Value::Real(parts[0]),
                };
                let zero = real.constant(w, 0);
                self.domain.multiply(w, alpha, sum).map(|part| w.select(has_alpha, part, zero))
            })
            .collect();
        w.when(is_row, |w| {
            let first = w.address(base, i, self.c.bytes());
            let write = |w: &mut Writer, beta: Option<Value>, limit: Option<Register>| {
                for (number, &product) in products.iter().enumerate() {
                    let j = w.add(j, number);
                    let element = |w: &mut Writer| {
                        let place = w.binary("mul.lo.s64", j, leading);
                        let place = w.address(first, place, self.c.bytes());
                        let whole = [w.add(i, first_row), w.add(j, first_column)];
                        self.element(w, product, beta, whole, place);
                    };
                    match limit {
                        None => element(w),
                        Some(limit) => {
                            let is_column = w.compare("lt.s64", j, limit);
                            w.when(is_column, element);
                        }
                    }
                }
            };
            // Most warps need no checks, and then no lane goes its own way.
            w.either(
                has_columns,
                |w| w.either(has_beta, |w| write(w, Some(beta), None), |w| write(w, None, None)),
                |w| {
                    let limit = Some(columns_of_c);
                    w.either(has_beta, |w| write(w, Some(beta), limit), |w| write(w, None, limit));
                },
            );
        });
        writer.finish()
    }

    /// Writes an element of C, whose row and column in the whole matrix are `whole`.
    fn element(
        &self,
        w: &mut Writer,
        product: Value,
        beta: Option<Value>,
        whole: [Register; 2],
        place: Register,
    ) {
        self.when_inside(w, whole, |w| {
            let result = match beta {
                None => product,
                Some(beta) => {
                    let old = self.domain.load(w, self.c, place);
                    self.domain.fma(w, beta, old, product)
                }
            };
            let result = match (self.is_hermitian, result) {
                (true, Value::Complex(re, im)) => {
                    let is_diagonal = w.compare("eq.s64", whole[0], whole[1]);
                    let zero = self.domain.real.constant(w, 0);
                    Value::Complex(re, w.select(is_diagonal, zero, im))
                }
                (_, result) => result,
            };
            self.domain.store(w, self.c, place, result);
        });
    }

    /// The sums of a thread, one for each column of the panel of B.
    fn sums(&self, w: &mut Writer, starts: [Register; 2], padded: Register) -> Vec<Register> {
        let real = self.domain.real;
        let (width, bytes, ty) = (COLUMNS, real.bytes(), real.ty());
        let per_load = 16 / bytes;
        let zero = real.constant(w, 0);
        let sums: Vec<Register> = (0..width).map(|_| w.variable(zero)).collect();
        let [a, b] = starts.map(|start| w.variable(start));
        let first = w.integer(0);
        w.each(first, padded, UNROLLED, |w, _| {
            for step in 0..u64::from(UNROLLED) {
                let row = w.register(real.class());
                emit!(w, "ld.global.{ty} {row}, [{a}+{}]", step * u64::from(ROWS) * bytes);
                let factors: Vec<Register> = (0..width).map(|_| w.register(real.class())).collect();
                for (number, group) in factors.chunks(per_load as usize).enumerate() {
                    let list: Vec<String> = group.iter().map(Register::to_string).collect();
                    let offset = (step * u64::from(width) + number as u64 * per_load) * bytes;
                    emit!(w, "ld.global.v{per_load}.{ty} {{{}}}, [{b}+{offset}]", list.join(", "));
                }
                for (&sum, &factor) in sums.iter().zip(&factors) {
                    emit!(w, "fma.rn.{ty} {sum}, {factor}, {row}, {sum}");
                }
            }
            emit!(w, "add.s64 {a}, {a}, {}", u64::from(UNROLLED * ROWS) * bytes);
            emit!(w, "add.s64 {b}, {b}, {}", u64::from(UNROLLED * width) * bytes);
        });
        sums
    }

    fn when_inside(&self, w: &mut Writer, [i, j]: [Register; 2], body: impl FnOnce(&mut Writer)) {
        let comparison = match self.triangle {
            None => return body(w),
            Some(Triangle::Lower) => "ge.s64",
            Some(Triangle::Upper) => "le.s64",
        };
        let is_inside = w.compare(comparison, i, j);
        w.when(is_inside, body);
    }
}

impl Real {
    fn bytes(self) -> u64 {
        if self.class() == Class::F64 { 8 } else { 4 }
    }
}
