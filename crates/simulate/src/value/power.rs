//! Power of GPUs by NVIDIA's data sheets: the thermal design power, which a GPU draws at most.

use crate::trace::Node;

/// A part of a model's name, and watts of one GPU. The first that matches counts.
const TDP_W: [(&str, f64); 14] = [
    ("B200", 1000.0),
    ("H200", 700.0),
    ("H100 PCIE", 350.0),
    ("H100", 700.0),
    ("A100 40GB PCIE", 250.0),
    ("A100", 400.0),
    ("L40S", 350.0),
    ("A10", 150.0),
    ("L4", 72.0),
    ("T4", 70.0),
    ("V100", 300.0),
    ("P100", 250.0),
    ("RTX 4090", 450.0),
    ("A30", 165.0),
];

/// The watts of all GPUs whose model is known, and the number of the others.
pub(super) fn tdp_w(nodes: &[Node]) -> (f64, u32) {
    nodes.iter().fold((0.0, 0), |(watts, unknown), node| {
        let model = node.model.to_uppercase();
        match TDP_W.iter().find(|(part, _)| model.contains(part)) {
            Some((_, each)) => (watts + each * f64::from(node.gpus), unknown),
            None => (watts, unknown + u32::from(node.gpus)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::nodes_from_text;

    #[test]
    fn models_are_known_by_a_part_of_their_name() {
        let watts = |model: &str| {
            let text = format!("name,cpus,memory_gib,gpus,model\nn,1,1,2,{model}\n");
            tdp_w(&nodes_from_text(&text).unwrap())
        };
        assert_eq!(watts("NVIDIA H100 80GB HBM3"), (1400.0, 0));
        assert_eq!(watts("A100-SXM4-80GB"), (800.0, 0));
        assert_eq!(watts("NVIDIA A10"), (300.0, 0));
        assert_eq!(watts("V100M32"), (600.0, 0));
        assert_eq!(watts("G2"), (0.0, 2));
    }
}
