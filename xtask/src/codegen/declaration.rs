//! What `driver.api` declares, as data.

/// The whole list, in its order.
#[derive(Debug)]
pub(crate) struct Declarations {
    pub(crate) functions: Vec<Function>,
    pub(crate) messages: Vec<Message>,
}

/// One driver function.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) section: String,
    /// The exported name, without a per-thread suffix.
    pub(crate) name: String,
    /// `None` where the prototype is of no use.
    pub(crate) parameters: Option<Vec<Parameter>>,
    pub(crate) class: Class,
    /// First CUDA version whose `cuGetProcAddress` gives it.
    pub(crate) version: Option<u32>,
    pub(crate) variant: Option<Variant>,
    /// The message, where it is not simply the parameters.
    pub(crate) message: Option<Fields>,
    /// Whether the generated stub first asks the client's function of the same name in `guards`.
    pub(crate) is_guarded: bool,
    /// Whether the worker's part of a generated function is by hand.
    pub(crate) is_kept: bool,
    /// Whether the answer follows from the arguments and the state of the function among them, so
    /// that it is asked once.
    pub(crate) is_constant: bool,
    /// What the worker goes by when it queues and executes the command; `None` where none travels.
    pub(crate) kind: Option<CommandKind>,
    /// What the worker calls for a command that no generated call executes; `None` where that is
    /// written by hand.
    pub(crate) delegate: Option<Delegate>,
}

/// A function of the worker that executes a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delegate {
    /// Its path in the worker's crate; `Session::NAME` is a method of the session.
    pub(crate) path: String,
    /// What it gets after the session: `command`, `&command`, `reply`, fields of the message, and
    /// constants by their paths.
    pub(crate) arguments: Vec<String>,
}

impl Delegate {
    /// The fields of the message that it gets.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &str> {
        let fields = self.arguments.iter().map(|argument| argument.trim_start_matches('&'));
        fields.filter(|field| !field.contains("::") && !["command", "reply"].contains(field))
    }

    /// Whether it encodes the answer itself.
    pub(crate) fn replies(&self) -> bool {
        self.arguments.iter().any(|argument| argument == "reply")
    }
}

/// What the worker goes by when it queues and executes a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandKind {
    pub(crate) effect: Effect,
    /// Of a queued command: whether the session continues when it is refused. `None` where the
    /// command waits, because the answer then carries the refusal.
    pub(crate) is_transient: Option<bool>,
}

/// What a command does to the device and to the commands around it; the head of `driver.api`
/// explains each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Work,
    Holds,
    Releases,
    Bookkeeping,
    Quick,
    Ordered,
    Call,
}

impl Effect {
    pub(crate) const ALL: [(&str, Effect); 7] = [
        ("work", Effect::Work),
        ("holds", Effect::Holds),
        ("releases", Effect::Releases),
        ("bookkeeping", Effect::Bookkeeping),
        ("quick", Effect::Quick),
        ("ordered", Effect::Ordered),
        ("call", Effect::Call),
    ];
}

/// A second export of the same function, for which null streams are the calling thread's own.
#[derive(Debug)]
pub(crate) struct Variant {
    /// `ptds` or `ptsz`.
    pub(crate) suffix: &'static str,
    pub(crate) version: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Local,
    Queued,
    Waiting,
    CustomQueued,
    CustomWaiting,
    /// By hand in the client, over messages of another function.
    Via(String),
    Absent(String),
}

#[derive(Debug)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Which values the API defines, where the declaration says so.
    pub(crate) limit: Option<Limit>,
}

/// The values of a number that the API defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Any of these bits.
    Bits(u64),
    /// From the first to the last.
    Range(u64, u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Value(String),
    /// A handle; the text is its wire name, such as `Stream`.
    Use(String),
    New(String),
    Del(String),
    Address(Length),
    InBytes(Length),
    OutBytes(Length),
    CStr,
    In(String),
    InArray(String, Length),
    Out {
        of: String,
        optional: bool,
    },
    InOut(String),
    /// A C pointer that does not travel.
    Raw(String),
}

/// How much memory a parameter stands for, in bytes or elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    Product(Product),
    /// A parameter less a number, but not less than none.
    Less(String, u64),
    /// `count` rows of `length`, whose starts are `pitch` apart.
    Rows {
        count: Product,
        length: Product,
        pitch: Product,
    },
}

/// Names of parameters and numbers, to be multiplied.
pub(crate) type Product = Vec<String>;

/// A message of the session: its own fields and those of its answer, as (name, wire type).
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields {
    pub(crate) sends: Vec<(String, String)>,
    pub(crate) replies: Vec<(String, String)>,
}

/// A message that belongs to no driver function.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) name: String,
    pub(crate) waits: bool,
    pub(crate) kind: CommandKind,
    pub(crate) delegate: Option<Delegate>,
    pub(crate) fields: Fields,
}

/// Wire names of handles with their C types.
pub(crate) const HANDLES: &[(&str, &str)] = &[
    ("Context", "CUcontext"),
    ("Stream", "CUstream"),
    ("Event", "CUevent"),
    ("Module", "CUmodule"),
    ("Function", "CUfunction"),
    ("Library", "CUlibrary"),
    ("Kernel", "CUkernel"),
    ("LinkState", "CUlinkState"),
    ("Graph", "CUgraph"),
    ("GraphNode", "CUgraphNode"),
    ("GraphExec", "CUgraphExec"),
    ("MemPool", "CUmemoryPool"),
    ("Array", "CUarray"),
    ("MipmappedArray", "CUmipmappedArray"),
    ("Physical", "CUmemGenericAllocationHandle"),
    ("UserObject", "CUuserObject"),
    ("GreenCtx", "CUgreenCtx"),
    ("ResourceDesc", "CUdevResourceDesc"),
    ("TexRef", "CUtexref"),
    ("SurfRef", "CUsurfref"),
];

pub(crate) fn handle_type(name: &str) -> Option<&'static str> {
    HANDLES.iter().find(|(wire, _)| *wire == name).map(|(_, c)| *c)
}

impl Class {
    /// Whether a message of its own travels.
    pub(crate) fn travels(&self) -> bool {
        matches!(self, Class::Queued | Class::Waiting | Class::CustomQueued | Class::CustomWaiting)
    }

    pub(crate) fn waits(&self) -> bool {
        matches!(self, Class::Waiting | Class::CustomWaiting)
    }

    /// Whether the client's stub is generated as well, and the worker's dispatch if nothing else is
    /// said.
    pub(crate) fn is_generated(&self) -> bool {
        matches!(self, Class::Queued | Class::Waiting)
    }
}

impl Function {
    /// Whether the worker executes it by a function of its own, and not by a generated call of the
    /// driver.
    pub(crate) fn has_executor(&self) -> bool {
        self.class.travels() && (self.is_kept || !self.class.is_generated())
    }

    /// The name that `cuGetProcAddress` knows: without `_v2` and the like.
    pub(crate) fn symbol(&self) -> &str {
        match self.name.rsplit_once("_v") {
            Some((symbol, digits)) if digits.bytes().all(|b| b.is_ascii_digit()) => symbol,
            _ => &self.name,
        }
    }

    /// Whether the call goes to a default stream that no parameter names, so that the variant must
    /// say which.
    pub(crate) fn has_hidden_stream(&self) -> bool {
        let named = self.parameters.iter().flatten().any(|p| p.kind == Kind::Use("Stream".into()));
        self.variant.is_some() && !named
    }

    /// Its parameters of one kind.
    pub(crate) fn parameters_of<'a>(&'a self, kind: &'a Kind) -> impl Iterator<Item = &'a Parameter> {
        self.parameters.iter().flatten().filter(move |parameter| parameter.kind == *kind)
    }

    /// The fields of its message.
    pub(crate) fn fields(&self) -> Fields {
        let mut fields = Fields::default();
        if let Some(message) = &self.message {
            return Fields { sends: message.sends.clone(), replies: message.replies.clone() };
        }
        for parameter in self.parameters.iter().flatten() {
            let name = parameter.name.clone();
            match &parameter.kind {
                Kind::Value(of) | Kind::In(of) => fields.sends.push((name, of.clone())),
                Kind::Use(handle) | Kind::New(handle) | Kind::Del(handle) => {
                    fields.sends.push((name, handle.clone()))
                }
                Kind::Address(_) => fields.sends.push((name, "DevicePtr".into())),
                Kind::InBytes(_) => fields.sends.push((name, "bytes".into())),
                Kind::CStr => fields.sends.push((name, "cstr".into())),
                Kind::InArray(of, _) => fields.sends.push((name, format!("[{of}]"))),
                Kind::OutBytes(_) => fields.replies.push((name, "bytes".into())),
                Kind::Out { of, .. } => fields.replies.push((name, of.clone())),
                Kind::InOut(of) => {
                    fields.sends.push((name.clone(), of.clone()));
                    fields.replies.push((name, of.clone()));
                }
                Kind::Raw(_) => unreachable!("the parser refuses plain pointers in functions that travel"),
            }
        }
        fields
    }
}

impl Parameter {
    /// Whether `value`, an expression for it, is one that the API does not define; `None` where all
    /// are.
    pub(crate) fn is_undefined(&self, value: &str) -> Option<String> {
        Some(match self.limit? {
            Limit::Bits(0) => format!("{value} != 0"),
            Limit::Bits(bits) => format!("{value} & !{bits:#x} != 0"),
            Limit::Range(first, last) => format!("!({first}..={last}).contains(&{value})"),
        })
    }

    /// Its C type, written in Rust.
    pub(crate) fn c_type(&self) -> String {
        let of = |name: &str| handle_type(name).unwrap_or(name).to_string();
        match &self.kind {
            Kind::Value(of) | Kind::Raw(of) => of.clone(),
            Kind::Use(handle) | Kind::Del(handle) => of(handle),
            Kind::New(handle) => format!("*mut {}", of(handle)),
            Kind::Address(_) => "CUdeviceptr".into(),
            Kind::InBytes(_) => "*const c_void".into(),
            Kind::OutBytes(_) => "*mut c_void".into(),
            Kind::CStr => "*const c_char".into(),
            Kind::In(value) | Kind::InArray(value, _) => format!("*const {}", of(value)),
            Kind::Out { of: value, .. } | Kind::InOut(value) => format!("*mut {}", of(value)),
        }
    }
}
