//! What the analysis says about lanes, on kernels in text form: a line `expect` names values and
//! their shapes.

use sluice_ir::analysis::{BlockShape, Shape, Shapes};
use sluice_ir::{BlockId, Value, text, verify};

/// Checks `expect v1 uniform`, `expect v2 affine 4`, `expect v3 varying`, `expect b0 divergent`,
/// `expect b1 together`.
fn check(block_shape: BlockShape, case: &str) {
    let (expected, kernel): (Vec<&str>, Vec<&str>) =
        case.lines().map(str::trim_end).partition(|line| line.trim_start().starts_with("expect"));
    let header = "kernel k\nparams 16 0:8:8 8:8:8\nshared 0 align 16\nlocal 0 align 16\n";
    let kernel = text::parse(&format!("{header}{}\n", kernel.join("\n"))).expect("a kernel");
    verify::verify_scheduled(&kernel).expect("a kernel as passes leave it");
    let shapes = Shapes::new(&kernel, block_shape);
    for line in expected {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |word: &str| word[1..].parse::<u32>().expect("an id");
        let holds = match words[1..] {
            [id, "uniform"] => shapes.is_uniform(Value(number(id))),
            [id, "varying"] => shapes.shape(Value(number(id))) == Shape::Varying,
            [id, "affine", stride] => {
                let stride = stride.parse().expect("a stride");
                shapes.shape(Value(number(id))) == Shape::Affine { stride }
            }
            [id, "divergent"] => shapes.is_divergent(BlockId(number(id))),
            [id, "together"] => !shapes.is_divergent(BlockId(number(id))),
            _ => panic!("{line}"),
        };
        assert!(holds, "{line}: {shapes:?}");
    }
}

#[test]
fn an_index_of_a_row_is_affine() {
    let case = "
b0:
  v0 = special.ctaid_x
  v1 = special.ntid_x
  v2 = mul.i32 v0, v1
  v3 = special.tid_x
  v4 = add.i32 v2, v3
  v5 = zext.i32.i64 v4
  v6 = const.i32 0x2
  v7 = shl.i64 v5, v6
  v8 = const.i32 0x1f
  v9 = and.i32 v3, v8
  v10 = const.i32 0x5
  v11 = shr_u.i32 v3, v10
  exit
  expect v2 uniform";
    let rows = "
  expect v4 affine 1
  expect v7 affine 4
  expect v9 affine 1
  expect v11 uniform";
    check(BlockShape::Rows, &format!("{case}{rows}"));
    check(BlockShape::Any, &format!("{case}\nexpect v4 varying\nexpect v11 varying"));
}

#[test]
fn an_unsigned_index_that_may_wrap_is_not_widened() {
    check(
        BlockShape::Rows,
        "
b0:
  v0 = special.tid_x
  v1 = const.i32 0xffffffff
  v2 = add.i32 v0, v1
  v3 = zext.i32.i64 v2
  v4 = sext.i32.i64 v2
  exit
  expect v2 affine 1
  expect v3 varying
  expect v4 affine 1",
    );
}

#[test]
fn ways_of_a_divergent_branch_meet_in_varying_parameters() {
    check(
        BlockShape::Rows,
        "
b0:
  v0 = special.laneid
  v1 = const.i32 0x3
  v2 = icmp.lt_u.i32 v0, v1
  v3 = special.ntid_x
  branch v2, b1, b2(v1)
b1:
  v4 = add.i32 v3, v1
  jump b2(v4)
b2(v5: i32):
  v6 = icmp.lt_u.i32 v3, v1
  branch v6, b3, b4(v1)
b3:
  jump b4(v3)
b4(v7: i32):
  exit
  expect b0 divergent
  expect v4 uniform
  expect v5 varying
  expect b2 together
  expect v7 uniform",
    );
}

#[test]
fn a_counter_is_uniform_in_a_loop_and_varying_behind_one_that_lanes_leave_apart() {
    check(
        BlockShape::Rows,
        "
b0:
  v0 = const.i32 0x0
  v1 = const.i32 0x1
  v2 = special.laneid
  jump b1(v0, v2)
b1(v3: i32, v4: i32):
  v5 = add.i32 v3, v1
  v6 = add.i32 v4, v1
  v7 = icmp.lt_u.i32 v6, v2
  branch v7, b1(v5, v6), b2(v5)
b2(v8: i32):
  v9 = special.ntid_x
  jump b3(v0)
b3(v10: i32):
  v11 = add.i32 v10, v1
  v12 = icmp.lt_u.i32 v11, v9
  branch v12, b3(v11), b4(v11)
b4(v13: i32):
  exit
  expect b1 divergent
  expect v3 uniform
  expect v4 affine 1
  expect v8 varying
  expect b3 together
  expect v10 uniform
  expect v13 uniform",
    );
}

#[test]
fn the_border_of_a_comparison_between_warps_separates_no_lanes() {
    check(
        BlockShape::Rows,
        "
b0:
  v0 = special.tid_x
  v1 = const.i32 0x7f
  v2 = icmp.gt_u.i32 v0, v1
  v3 = const.i32 0xf
  v4 = icmp.gt_u.i32 v0, v3
  exit
  expect v2 uniform
  expect v4 varying",
    );
}

#[test]
fn what_no_iteration_changes_stays_what_it_is_behind_the_loop() {
    check(
        BlockShape::Rows,
        "
b0:
  v0 = const.i32 0x0
  v1 = special.laneid
  jump b1(v0)
b1(v2: i32):
  v3 = const.i32 0x1
  v4 = special.ctaid_x
  v5 = add.i32 v2, v3
  v6 = icmp.lt_u.i32 v5, v1
  branch v6, b1(v5), b2
b2:
  v7 = add.i32 v4, v3
  v8 = add.i32 v5, v3
  exit
  expect b1 divergent
  expect v3 uniform
  expect v7 uniform
  expect v8 varying",
    );
}
