//! What names mean inside a body.
//!
//! PTX scopes are those of C: `{` opens one, names are declared before use and may hide those
//! outside. Labels are the exception, a branch may come first; so a name that means nothing yet is
//! left as a module-level symbol, and looked up once more when the body has been read (see `body`).
//!
//! `.reg .b32 %r<1000>` declares a thousand registers of which a body often uses few; only those
//! become registers of the tree, which also makes `%r<4000000000>` harmless.

use std::collections::HashMap;

use crate::Type;
use crate::ast::{LabelId, RegisterId, VariableId};

/// What a name in a body is.
#[derive(Clone, Debug)]
pub(super) enum Local {
    Register(RegisterId),
    /// The components of a vector register.
    Vector(Vec<RegisterId>),
    Param(u32),
    Return(u32),
    Variable(VariableId),
    Label(LabelId),
    BranchTargets(u32),
    CallTargets(u32),
    Prototype(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScopeId(u32);

/// All scopes of a body, closed ones included, since a branch in them is resolved at the end.
#[derive(Default)]
pub(super) struct Scopes<'a> {
    scopes: Vec<Scope<'a>>,
}

#[derive(Default)]
struct Scope<'a> {
    parent: Option<ScopeId>,
    names: HashMap<&'a str, Local>,
    ranges: Vec<Range<'a>>,
}

/// `.reg .ty prefix<count>`, `.reg .v2 .ty prefix<count>`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range<'a> {
    pub(super) prefix: &'a str,
    pub(super) count: u32,
    pub(super) ty: Type,
    /// Components of each register; 1 for scalars.
    pub(super) vector: usize,
}

/// What looking a name up in the ranges gives: a register to be made in this scope.
pub(super) struct InRange {
    pub(super) scope: ScopeId,
    pub(super) ty: Type,
    pub(super) vector: usize,
}

impl<'a> Scopes<'a> {
    pub(super) fn open(&mut self, parent: Option<ScopeId>) -> ScopeId {
        self.scopes.push(Scope { parent, ..Scope::default() });
        ScopeId(u32::try_from(self.scopes.len() - 1).unwrap_or(u32::MAX))
    }

    pub(super) fn parent(&self, scope: ScopeId) -> Option<ScopeId> {
        self.scope(scope).parent
    }

    /// False when the scope has the name already.
    pub(super) fn declare(&mut self, scope: ScopeId, name: &'a str, local: Local) -> bool {
        self.scopes[scope.0 as usize].names.insert(name, local).is_none()
    }

    pub(super) fn declare_range(&mut self, scope: ScopeId, range: Range<'a>) {
        self.scopes[scope.0 as usize].ranges.push(range);
    }

    /// The innermost meaning of a name; Err where it is a register of a range that was not used
    /// yet.
    pub(super) fn look_up(&self, scope: ScopeId, name: &str) -> Option<Result<&Local, InRange>> {
        let mut at = Some(scope);
        while let Some(id) = at {
            let scope = self.scope(id);
            if let Some(local) = scope.names.get(name) {
                return Some(Ok(local));
            }
            if let Some(range) = scope.ranges.iter().find(|range| range.contains(name)) {
                return Some(Err(InRange { scope: id, ty: range.ty, vector: range.vector }));
            }
            at = scope.parent;
        }
        None
    }

    fn scope(&self, id: ScopeId) -> &Scope<'a> {
        &self.scopes[id.0 as usize]
    }
}

impl Range<'_> {
    fn contains(&self, name: &str) -> bool {
        let Some(digits) = name.strip_prefix(self.prefix) else { return false };
        let is_canonical = digits == "0" || (!digits.starts_with('0') && !digits.starts_with('+'));
        is_canonical && digits.parse::<u32>().is_ok_and(|index| index < self.count)
    }
}
