//! What each name of each text means, all texts together.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use super::{Input, LinkError, directive_of};
use crate::ast::Linkage;
use crate::index::{Kind, ModuleIndex};

/// A declaration: of which text, and which one there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeclarationId {
    pub(super) unit: usize,
    pub(super) declaration: usize,
}

/// How much a declaration of a name that texts share has to say about it. The greatest is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    /// It is another's. Of arrays that launches size the one with the largest alignment counts.
    Declared {
        align: u32,
    },
    Common {
        size: u64,
    },
    Weak,
    Strong,
}

/// One mention of a name by a declaration.
struct Mention<'a> {
    name: &'a str,
    is_function: bool,
    linkage: Linkage,
    /// None for what only its own text knows.
    claim: Option<Claim>,
}

/// A name that texts share.
struct Shared {
    claim: Claim,
    is_function: bool,
    linkage: Linkage,
    place: DeclarationId,
    /// The first declaration without a body, if it is a function's.
    announcement: Option<DeclarationId>,
}

pub(super) struct Names {
    shared: HashMap<String, Shared>,
    /// By text: names of its own, and what they become.
    renamed: Vec<HashMap<Vec<u8>, Vec<u8>>>,
    /// By text: names of its own.
    own: Vec<HashSet<String>>,
}

impl Names {
    pub(super) fn resolve(inputs: &[Input<'_>], units: &[ModuleIndex]) -> Result<Names, LinkError> {
        let mut names = Names { shared: HashMap::new(), renamed: Vec::new(), own: Vec::new() };
        for (unit, index) in units.iter().enumerate() {
            for declaration in 0..index.declarations.len() {
                let place = DeclarationId { unit, declaration };
                for mention in mentions(index, declaration) {
                    names.mention(inputs, index, place, &mention)?;
                }
            }
        }
        names.keep_apart(units);
        Ok(names)
    }

    fn mention(
        &mut self,
        inputs: &[Input<'_>],
        unit: &ModuleIndex,
        place: DeclarationId,
        mention: &Mention<'_>,
    ) -> Result<(), LinkError> {
        let Some(claim) = mention.claim else { return Ok(()) };
        let (name, is_function) = (mention.name, mention.is_function);
        let announcement = is_announcement(unit, place.declaration).then_some(place);
        let new = Shared { claim, is_function, linkage: mention.linkage, place, announcement };
        let known = match self.shared.entry(name.to_owned()) {
            Entry::Vacant(vacant) => {
                vacant.insert(new);
                return Ok(());
            }
            Entry::Occupied(known) => known.into_mut(),
        };
        let input = |place: DeclarationId| inputs[place.unit].name.to_owned();
        if known.is_function != is_function {
            let (function, variable) = if is_function { (place, known.place) } else { (known.place, place) };
            return Err(LinkError::Kinds {
                name: name.to_owned(),
                function: input(function),
                variable: input(variable),
            });
        }
        if (known.claim, claim) == (Claim::Strong, Claim::Strong) {
            return Err(LinkError::Duplicate {
                name: name.to_owned(),
                first: input(known.place),
                second: input(place),
            });
        }
        known.announcement = known.announcement.or(announcement);
        if claim > known.claim {
            *known = Shared { announcement: known.announcement, ..new };
        }
        Ok(())
    }

    /// Finds the names that only their own text knows, and new ones for those that another text
    /// uses as well.
    fn keep_apart(&mut self, units: &[ModuleIndex]) {
        let mut taken: HashSet<String> = self.shared.keys().cloned().collect();
        let own = |unit: &ModuleIndex| -> HashSet<String> {
            let mentions = (0..unit.declarations.len()).flat_map(|at| mentions(unit, at));
            let (shared, own): (Vec<_>, Vec<_>) = mentions.partition(|mention| mention.claim.is_some());
            // What is announced without a directive and defined with one is shared.
            let shared: HashSet<&str> = shared.iter().map(|mention| mention.name).collect();
            own.iter()
                .map(|mention| mention.name.to_owned())
                .filter(|name| !shared.contains(&**name))
                .collect()
        };
        self.own = units.iter().map(own).collect();
        let all: HashSet<&String> = self.own.iter().flatten().chain(self.shared.keys()).collect();
        for (number, own) in self.own.iter().enumerate() {
            let mut renamed = HashMap::new();
            for name in own {
                if taken.insert(name.clone()) {
                    continue;
                }
                let mut new = format!("{name}${number}");
                while all.contains(&new) || taken.contains(&new) {
                    new.push('_');
                }
                taken.insert(new.clone());
                renamed.insert(name.clone().into_bytes(), new.into_bytes());
            }
            self.renamed.push(renamed);
        }
    }

    pub(super) fn renamed(&self, unit: usize) -> &HashMap<Vec<u8>, Vec<u8>> {
        &self.renamed[unit]
    }

    /// Whether a declaration is written.
    pub(super) fn keeps(
        &self,
        inputs: &[Input<'_>],
        unit: &ModuleIndex,
        place: DeclarationId,
    ) -> Result<bool, LinkError> {
        let is_kept = |mention: &Mention<'_>| match self.shared.get(mention.name) {
            Some(shared) if !self.own[place.unit].contains(mention.name) => {
                place == shared.place || Some(place) == shared.announcement
            }
            _ => true,
        };
        let mentions = mentions(unit, place.declaration);
        let kept = mentions.iter().filter(|mention| is_kept(mention)).count();
        if kept == 0 || kept == mentions.len() {
            return Ok(kept > 0);
        }
        let name = mentions.iter().find(|mention| !is_kept(mention)).map_or("", |mention| mention.name);
        Err(LinkError::Together { input: inputs[place.unit].name.to_owned(), name: name.to_owned() })
    }

    /// The directive with which a shared function is announced: that of its definition.
    pub(super) fn announced_as(&self, unit: &ModuleIndex, place: DeclarationId) -> Option<&'static str> {
        if !is_announcement(unit, place.declaration) {
            return None;
        }
        let mention = mentions(unit, place.declaration).into_iter().next()?;
        let shared =
            self.shared.get(mention.name).filter(|_| !self.own[place.unit].contains(mention.name))?;
        (shared.place != place).then(|| directive_of(shared.linkage))
    }
}

/// Whether a declaration is a function's without its body.
fn is_announcement(unit: &ModuleIndex, declaration: usize) -> bool {
    match unit.declarations[declaration].kind {
        Kind::Function(index) => unit.functions[index].body.is_none(),
        _ => false,
    }
}

/// The names that a declaration mentions.
fn mentions(unit: &ModuleIndex, declaration: usize) -> Vec<Mention<'_>> {
    match &unit.declarations[declaration].kind {
        Kind::Function(index) => {
            let function = &unit.functions[*index];
            let claim = match (function.linkage, function.body.is_some()) {
                (Linkage::Internal, has_body) if function.is_entry => {
                    Some(if has_body { Claim::Strong } else { Claim::Declared { align: 0 } })
                }
                (Linkage::Internal, _) => None,
                (_, false) => Some(Claim::Declared { align: 0 }),
                (Linkage::Weak | Linkage::Common, true) => Some(Claim::Weak),
                (Linkage::Visible | Linkage::Extern, true) => Some(Claim::Strong),
            };
            vec![Mention { name: &function.name, is_function: true, linkage: function.linkage, claim }]
        }
        Kind::Variables(range) => {
            let mention = |variable: &'_ crate::ast::Variable| match variable.linkage {
                Linkage::Internal => None,
                Linkage::Visible => Some(Claim::Strong),
                Linkage::Extern => Some(Claim::Declared { align: variable.align }),
                Linkage::Weak => Some(Claim::Weak),
                Linkage::Common => Some(Claim::Common { size: variable.size }),
            };
            let variables = unit.variables[range.clone()].iter();
            let linkage = |variable: &crate::ast::Variable| variable.linkage;
            variables
                .map(|variable| Mention {
                    name: &variable.name,
                    is_function: false,
                    linkage: linkage(variable),
                    claim: mention(variable),
                })
                .collect()
        }
        Kind::Alias(index) => {
            let alias = &unit.aliases[*index];
            // The function is declared, and with that it is said who may know it.
            let declared = unit.functions.iter().find(|function| function.name == alias.name);
            let linkage = declared.map_or(Linkage::Internal, |function| function.linkage);
            let claim = match linkage {
                Linkage::Internal => None,
                Linkage::Weak | Linkage::Common => Some(Claim::Weak),
                Linkage::Visible | Linkage::Extern => Some(Claim::Strong),
            };
            vec![Mention { name: &alias.name, is_function: true, linkage, claim }]
        }
    }
}
