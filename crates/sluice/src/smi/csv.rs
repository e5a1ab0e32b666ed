//! `--query-…=NAMES --format=csv`: a line for each GPU or process, as `nvidia-smi` writes it.

use anyhow::{Context, Result, bail};

/// What can be asked of a `T`.
pub(crate) struct Property<T> {
    /// The one that the header says, and others for the same.
    pub(crate) names: &'static [&'static str],
    pub(crate) unit: &'static str,
    /// `None`: `[N/A]`.
    pub(crate) value: fn(&T) -> Option<String>,
}

pub(crate) fn help<T>(properties: &[Property<T>]) -> String {
    let names = properties.iter().map(|property| {
        let names: Vec<String> = property.names.iter().map(|name| format!("{name:?}")).collect();
        names.join(" or ") + "\n"
    });
    format!(
        "Properties that this stand-in knows; what a lease has no answer for is [N/A].\n\n{}",
        names.collect::<String>()
    )
}

pub(crate) fn table<'a, T: 'a>(
    properties: &[Property<T>],
    rows: impl Iterator<Item = &'a T>,
    names: &str,
    format: Option<&str>,
) -> Result<String> {
    let format = format.unwrap_or("csv");
    let options: Vec<&str> = format.split(',').map(str::trim).collect();
    if !options.contains(&"csv") || options.iter().any(|it| !["csv", "noheader", "nounits"].contains(it)) {
        bail!("--format={format}: csv, with noheader and nounits, is what is there");
    }
    let (header, units) = (!options.contains(&"noheader"), !options.contains(&"nounits"));
    let find = |name: &str| {
        let found = properties.iter().find(|property| property.names.contains(&name));
        found.with_context(|| format!("{name:?} is no property that this stand-in knows"))
    };
    let columns: Vec<_> = names.split(',').map(|name| find(name.trim())).collect::<Result<_>>()?;
    let mut text = String::new();
    if header {
        let title = |property: &&Property<T>| match property.unit {
            "" => property.names[0].to_string(),
            unit => format!("{} [{unit}]", property.names[0]),
        };
        text += &(columns.iter().map(title).collect::<Vec<_>>().join(", ") + "\n");
    }
    for row in rows {
        let cell = |property: &&Property<T>| match (property.value)(row) {
            None => "[N/A]".to_string(),
            Some(value) if units && !property.unit.is_empty() => format!("{value} {}", property.unit),
            Some(value) => value,
        };
        text += &columns.iter().map(cell).collect::<Vec<_>>().join(", ");
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::super::gpu::tests::gpu;
    use super::super::gpu::{OF_GPUS, OF_PROCESSES, Process};
    use super::*;

    fn check(names: &str, format: &str, expect: &str) {
        let gpu = gpu(0);
        assert_eq!(
            table(OF_GPUS, [&gpu].into_iter(), names, Some(format)).expect("known properties"),
            expect,
            "{format}"
        );
    }

    #[test]
    fn gpus_as_programs_read_them() {
        check("name, memory.total", "csv", "name, memory.total [MiB]\nA GPU, 1024 MiB\n");
        check("memory.free,utilization.gpu", "csv,noheader", "1000 MiB, 50 %\n");
        check("memory.used", "csv,noheader,nounits", "24\n");
        check("memory.used", "csv,nounits", "memory.used [MiB]\n24\n");
        check("temperature.gpu,compute_cap", "csv,noheader", "[N/A], 12.0\n");
        // accelerate.
        check("count,name", "csv,noheader", "2, A GPU\n");
        // GPUtil.
        let names = "index,uuid,utilization.gpu,memory.total,memory.used,memory.free,driver_version,name,gpu_serial,\
                     display_active,display_mode,temperature.gpu";
        let expect = "0, GPU-0, 50, 1024, 24, 1000, 580.65.06, A GPU, [N/A], [N/A], [N/A], [N/A]\n";
        check(names, "csv,noheader,nounits", expect);
        check("gpu_name,pci.bus_id", "csv", "name, pci.bus_id\nA GPU, 00000000:01:00.0\n");
    }

    #[test]
    fn what_is_not_known_is_an_error() {
        let gpu = gpu(0);
        let gpus = || [&gpu].into_iter();
        assert!(table(OF_GPUS, gpus(), "nonsense", None).is_err());
        assert!(
            table(OF_GPUS, gpus().take(0), "nonsense", None).is_err(),
            "also where there is nothing to show"
        );
        assert!(table(OF_GPUS, gpus(), "name", Some("xml")).is_err());
        assert!(table(OF_GPUS, gpus(), "name", Some("csv,nonsense")).is_err());
    }

    #[test]
    fn processes_as_programs_read_them() {
        let gpu = gpu(0);
        let rows = &gpu.processes;
        let asked =
            |rows: &[Process], names, format| table(OF_PROCESSES, rows.iter(), names, Some(format)).unwrap();
        let names = "pid,process_name,used_memory,gpu_uuid,gpu_name";
        assert_eq!(asked(rows, names, "csv,noheader,nounits"), "77, python3 train.py, 24, GPU-0, A GPU\n");
        assert_eq!(asked(&[], "pid,used_memory", "csv"), "pid, used_gpu_memory [MiB]\n");
        assert_eq!(asked(rows, "pid,used_memory", "csv,noheader"), "77, 24 MiB\n");
    }
}
