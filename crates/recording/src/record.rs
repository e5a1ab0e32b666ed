//! What was launched: one line each in the file that `SLUICE_RECORDING` names in the worker's
//! environment.
//!
//! ```text
//! kernel <tab> grid x,y,z <tab> block x,y,z <tab> cluster x,y,z <tab> dynamic shared bytes
//!        <tab> parameters in hex
//! ```

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::sync::OnceLock;

use sluice_softgpu::Grid;

const VARIABLE: &str = "SLUICE_RECORDING";

/// Notes a launch whose turn has come.
pub(crate) fn launch(grid: &Grid<'_>) {
    if let Some(mut file) = file() {
        // A file that cannot be written to records nothing; the program is not to notice.
        let _ = file.write_all(line(grid.name, &grid.shape, grid.params).as_bytes());
    }
}

fn file() -> Option<&'static File> {
    static FILE: OnceLock<Option<File>> = OnceLock::new();
    let open = || {
        let path = std::env::var_os(VARIABLE)?;
        let file = File::options().create(true).append(true).open(&path);
        file.inspect_err(|error| eprintln!("sluice: {VARIABLE}={path:?}: {error}")).ok()
    };
    FILE.get_or_init(open).as_ref()
}

fn line(name: &str, shape: &sluice_softgpu::Shape, params: &[u8]) -> String {
    let three = |[x, y, z]: [u32; 3]| format!("{x},{y},{z}");
    let (grid, block, cluster) =
        (three(shape.grid), three(shape.block), three(shape.cluster.unwrap_or([1; 3])));
    let mut line = format!("{name}\t{grid}\t{block}\t{cluster}\t{}\t", shape.dynamic_shared);
    for byte in params {
        let _ = write!(line, "{byte:02x}");
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_is_one_line() {
        let shape = sluice_softgpu::Shape {
            grid: [4, 2, 1],
            block: [256, 1, 1],
            cluster: Some([2, 1, 1]),
            dynamic_shared: 1024,
            cooperative: false,
        };
        assert_eq!(line("add", &shape, &[1, 0xff]), "add\t4,2,1\t256,1,1\t2,1,1\t1024\t01ff\n");
    }
}
