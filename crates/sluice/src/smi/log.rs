//! `-q`: all that is known of each GPU, in the layout of `nvidia-smi -q`, as text or XML.

use super::gpu::{LeasedGpu, now};
use crate::cli::SmiPart;

/// A line, and what stands indented below it.
struct Entry {
    title: &'static str,
    tag: &'static str,
    value: Option<String>,
    below: Vec<Entry>,
    /// What `-d` names it by.
    part: Option<SmiPart>,
}

fn line(title: &'static str, tag: &'static str, value: impl Into<String>) -> Entry {
    Entry { title, tag, value: Some(value.into()), below: Vec::new(), part: None }
}

fn section(title: &'static str, tag: &'static str, part: Option<SmiPart>, below: Vec<Entry>) -> Entry {
    Entry { title, tag, value: None, below, part }
}

/// Of the parts that are named; of all where none is.
pub(crate) fn text(gpus: &[LeasedGpu], parts: &[SmiPart], xml: bool) -> String {
    let Some(first) = gpus.first() else { return String::new() };
    let head = [
        line("Timestamp", "timestamp", now("%a %b %e %H:%M:%S %Y")),
        line("Driver Version", "driver_version", &*first.driver_version),
        line("CUDA Version", "cuda_version", &*first.cuda_version),
        line("Attached GPUs", "attached_gpus", gpus.len().to_string()),
    ];
    let is_wanted = |entry: &Entry| parts.is_empty() || entry.part.is_some_and(|part| parts.contains(&part));
    let mut out = String::new();
    if xml {
        out += "<?xml version=\"1.0\" ?>\n<nvidia_smi_log>\n";
        head.iter().for_each(|entry| entry.write_xml(&mut out, 1));
    } else {
        out += "\n==============NVSMI LOG==============\n\n";
        for (index, entry) in head.iter().enumerate() {
            // The GPUs stand below the last one.
            out += if index == head.len() - 1 { "\n" } else { "" };
            entry.write(&mut out, 0);
        }
    }
    for gpu in gpus {
        let entries = entries(gpu);
        let entries = entries.iter().filter(|entry| is_wanted(entry));
        if xml {
            out += &format!("\t<gpu id=\"{}\">\n", gpu.bus_id());
            entries.for_each(|entry| entry.write_xml(&mut out, 2));
            out += "\t</gpu>\n";
        } else {
            out += &format!("GPU {}\n", gpu.bus_id());
            entries.for_each(|entry| entry.write(&mut out, 1));
            out.push('\n');
        }
    }
    out + if xml { "</nvidia_smi_log>\n" } else { "" }
}

fn entries(gpu: &LeasedGpu) -> Vec<Entry> {
    let mib = |value: u64| format!("{value} MiB");
    let mode = |title, tag, value: &str, part| Entry { part, ..line(title, tag, value) };
    vec![
        line("Product Name", "product_name", &*gpu.name),
        line("Persistence Mode", "persistence_mode", "Enabled"),
        section(
            "MIG Mode",
            "mig_mode",
            None,
            vec![line("Current", "current_mig", "Disabled"), line("Pending", "pending_mig", "Disabled")],
        ),
        line("Serial Number", "serial", "N/A"),
        line("GPU UUID", "uuid", &*gpu.uuid),
        line("Minor Number", "minor_number", gpu.index.to_string()),
        section(
            "PCI",
            "pci",
            None,
            vec![
                line("Bus", "pci_bus", format!("0x{:02X}", gpu.index + 1)),
                line("Device", "pci_device", "0x00"),
                line("Domain", "pci_domain", "0x0000"),
                line("Bus Id", "pci_bus_id", gpu.bus_id()),
            ],
        ),
        section(
            "FB Memory Usage",
            "fb_memory_usage",
            Some(SmiPart::Memory),
            vec![
                line("Total", "total", mib(gpu.memory_mib)),
                line("Reserved", "reserved", mib(0)),
                line("Used", "used", mib(gpu.used_mib)),
                line("Free", "free", mib(gpu.free_mib())),
            ],
        ),
        mode("Compute Mode", "compute_mode", "Default", Some(SmiPart::Compute)),
        section(
            "Utilization",
            "utilization",
            Some(SmiPart::Utilization),
            vec![
                line("Gpu", "gpu_util", format!("{} %", gpu.busy_percent)),
                line("Memory", "memory_util", "N/A"),
                line("Encoder", "encoder_util", "N/A"),
                line("Decoder", "decoder_util", "N/A"),
            ],
        ),
        section(
            "Temperature",
            "temperature",
            Some(SmiPart::Temperature),
            vec![line("GPU Current Temp", "gpu_temp", "N/A")],
        ),
        processes(gpu),
    ]
}

fn processes(gpu: &LeasedGpu) -> Entry {
    let each = gpu.processes.iter().map(|process| Entry {
        below: vec![
            line("Type", "type", "C"),
            line("Name", "process_name", &*process.name),
            line("Used GPU Memory", "used_memory", format!("{} MiB", process.used_mib)),
        ],
        ..line("Process ID", "process_info", process.pid.to_string())
    });
    let processes = section("Processes", "processes", Some(SmiPart::Pids), each.collect());
    let none = processes.below.is_empty().then(|| "None".to_string());
    Entry { value: none, ..processes }
}

impl Entry {
    /// Values begin in one column.
    fn write(&self, out: &mut String, depth: usize) {
        let title = format!("{:1$}{2}", "", 4 * depth, self.title);
        match &self.value {
            Some(value) => *out += &format!("{title:<42}: {value}\n"),
            None => *out += &format!("{title}\n"),
        }
        self.below.iter().for_each(|entry| entry.write(out, depth + 1));
    }

    fn write_xml(&self, out: &mut String, depth: usize) {
        let (indent, tag) = ("\t".repeat(depth), self.tag);
        if self.below.is_empty() {
            // No process is an empty element.
            let value = self.value.as_deref().filter(|_| self.part != Some(SmiPart::Pids)).unwrap_or("");
            // Numbers of the bus have their prefix in text only.
            let value = value.strip_prefix("0x").unwrap_or(value);
            *out += &format!("{indent}<{tag}>{}</{tag}>\n", escaped(value));
            return;
        }
        *out += &format!("{indent}<{tag}>\n");
        if let Some(value) = &self.value {
            // Of all entries with something below them only processes have a value: their number.
            *out += &format!("{indent}\t<pid>{}</pid>\n", escaped(value));
        }
        self.below.iter().for_each(|entry| entry.write_xml(out, depth + 1));
        *out += &format!("{indent}</{tag}>\n");
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::gpu::tests::gpu;
    use super::*;

    #[test]
    fn parts_of_the_log_are_in_their_layout() {
        let text = text(&[gpu(1)], &[SmiPart::Memory, SmiPart::Utilization], false);
        let (_, after) = text.split_once("Attached GPUs").expect("the head");
        let expect = "                             : 1
GPU 00000000:02:00.0
    FB Memory Usage
        Total                             : 1024 MiB
        Reserved                          : 0 MiB
        Used                              : 24 MiB
        Free                              : 1000 MiB
    Utilization
        Gpu                               : 50 %
        Memory                            : N/A
        Encoder                           : N/A
        Decoder                           : N/A

";
        assert_eq!(after, expect);
        assert!(text.contains("\nDriver Version                            : 580.65.06\n"), "{text}");
    }

    #[test]
    fn processes_are_named_or_none() {
        let mut gpu = gpu(0);
        let shown = |gpu: &LeasedGpu| text(std::slice::from_ref(gpu), &[], false);
        let process = "    Processes\n        Process ID                        : 77\n            Type                          : C\n";
        assert!(shown(&gpu).contains(process), "{}", shown(&gpu));
        gpu.processes.clear();
        assert!(
            shown(&gpu).contains("    Processes                             : None\n"),
            "{}",
            shown(&gpu)
        );
    }

    #[test]
    fn xml_has_its_elements_closed_and_its_text_escaped() {
        let mut gpu = gpu(0);
        gpu.processes[0].name = "a <b> & c".into();
        let xml = text(&[gpu], &[], true);
        for part in [
            "<attached_gpus>1</attached_gpus>",
            "<gpu id=\"00000000:01:00.0\">",
            "<fb_memory_usage>\n\t\t\t<total>1024 MiB</total>",
            "<pid>77</pid>",
            "<process_name>a &lt;b&gt; &amp; c</process_name>",
        ] {
            assert!(xml.contains(part), "{part} in {xml}");
        }
        let opened = xml.matches('<').count() - xml.matches("</").count() - 1;
        assert_eq!(opened, xml.matches("</").count());
    }
}
