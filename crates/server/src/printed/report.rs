//! Reports: a title, facts, and tables, as HTML, PDF or CSV.

use sluice_api::text::escaped;

/// A column of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Column {
    pub(crate) title: &'static str,
    /// The name in the first line of a CSV file.
    pub(crate) key: &'static str,
    /// The cells are numbers, which are aligned to the right.
    pub(crate) is_number: bool,
    /// The part of the width that it gets, in proportion to those of the others.
    pub(crate) weight: f32,
}

impl Column {
    pub(crate) const fn text(title: &'static str, key: &'static str, weight: f32) -> Column {
        Column { title, key, is_number: false, weight }
    }

    pub(crate) const fn number(title: &'static str, key: &'static str, weight: f32) -> Column {
        Column { title, key, is_number: true, weight }
    }
}

/// A table with a heading.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Section {
    /// What its rows are, for the first column of a CSV file.
    pub(crate) key: &'static str,
    pub(crate) heading: &'static str,
    pub(crate) columns: &'static [Column],
    pub(crate) rows: Vec<Vec<String>>,
    /// The text in place of a table without rows.
    pub(crate) empty: &'static str,
}

/// The content of a report, in reading order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Report {
    pub(crate) title: &'static str,
    pub(crate) issuer: String,
    pub(crate) facts: Vec<(&'static str, String)>,
    pub(crate) sections: Vec<Section>,
    pub(crate) notes: Vec<String>,
}

impl Report {
    /// Shows texts that come from people as what they are.
    pub(crate) fn clean(mut self) -> Report {
        let clean = |text: &mut String| *text = escaped(text).into_owned();
        clean(&mut self.issuer);
        self.facts.iter_mut().for_each(|(_, value)| clean(value));
        self.sections.iter_mut().flat_map(|section| &mut section.rows).flatten().for_each(clean);
        self
    }
}

/// Renders the tables of a report as one CSV file (RFC 4180). The first column names the table of a
/// row, and columns that its table does not have are empty.
pub(crate) fn csv(report: &Report) -> Result<Vec<u8>, String> {
    let mut keys: Vec<&str> = vec!["section"];
    for column in report.sections.iter().flat_map(|section| section.columns) {
        if !keys.contains(&column.key) {
            keys.push(column.key);
        }
    }
    let failed = |error: csv::Error| error.to_string();
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(&keys).map_err(failed)?;
    for section in &report.sections {
        for row in &section.rows {
            let cell = |key: &&str| match section.columns.iter().position(|column| column.key == *key) {
                _ if *key == "section" => section.key.to_owned(),
                Some(at) if section.columns[at].is_number => row[at].clone(),
                Some(at) => no_formula(&row[at]),
                None => String::new(),
            };
            writer.write_record(keys.iter().map(cell)).map_err(failed)?;
        }
    }
    writer.into_inner().map_err(|error| error.to_string())
}

/// Keeps spreadsheets from taking a text for a formula (OWASP, "CSV Injection").
fn no_formula(text: &str) -> String {
    if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{text}") } else { text.to_owned() }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const FIRST: &[Column] = &[Column::text("Tenant", "tenant", 2.0), Column::number("Cost", "cost", 1.0)];
    const SECOND: &[Column] = &[Column::text("Tenant", "tenant", 2.0), Column::text("Reason", "reason", 3.0)];

    pub(in crate::printed) fn report() -> Report {
        let row = |cells: [&str; 2]| cells.map(String::from).to_vec();
        Report {
            title: "Cost report",
            issuer: "Acme <Compute>".into(),
            facts: vec![("Tenant", "acme".into())],
            sections: vec![
                Section {
                    key: "line",
                    heading: "What was used",
                    columns: FIRST,
                    rows: (0..120).map(|number| row(["acme", &format!("{number}.5")])).collect(),
                    empty: "Nothing was used",
                },
                Section {
                    key: "correction",
                    heading: "Corrections",
                    columns: SECOND,
                    rows: vec![row(["acme", "=HYPERLINK(\"x\")"])],
                    empty: "No corrections",
                },
            ],
            notes: vec!["Times are in UTC.".into()],
        }
    }

    #[test]
    fn a_csv_file_has_all_tables_and_no_formulas() {
        let text = String::from_utf8(csv(&report()).unwrap()).unwrap();
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("section,tenant,cost,reason"));
        assert_eq!(lines.next(), Some("line,acme,0.5,"));
        assert_eq!(lines.next_back(), Some("correction,acme,,\"'=HYPERLINK(\"\"x\"\")\""));
    }

    #[test]
    fn negative_numbers_stay_numbers() {
        assert_eq!(no_formula("-1"), "'-1");
        let mut report = report();
        report.sections[0].rows = vec![vec!["acme".into(), "-1.5".into()]];
        assert!(String::from_utf8(csv(&report).unwrap()).unwrap().contains("line,acme,-1.5,"));
    }
}
