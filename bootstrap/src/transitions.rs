//! State machines as tables that can be read, followed and printed.

/// Gives a state enum its transitions: `after` follows them, `graph` prints them.
///
/// ```
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// enum Door { Open, Closed }
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// enum Push { Shut, Pull }
///
/// rlaunch_bootstrap::transitions! {
///     Door on Push {
///         Open   + Shut => Closed,
///         Closed + Pull => Open,
///     }
/// }
/// assert_eq!(Door::Open.after(Push::Shut), Some(Door::Closed));
/// assert_eq!(Door::Open.after(Push::Pull), None);
/// ```
#[macro_export]
macro_rules! transitions {
    ($state:ident on $event:ident { $($from:ident + $on:ident => $to:ident,)* }) => {
        impl $state {
            const TRANSITIONS: &[($state, $event, $state)] =
                &[$(($state::$from, $event::$on, $state::$to),)*];

            /// The state that follows; `None` when this cannot happen here.
            pub fn after(self, event: $event) -> Option<$state> {
                let found = Self::TRANSITIONS.iter().find(|(from, on, _)| (*from, *on) == (self, event));
                found.map(|&(_, _, to)| to)
            }

            /// Every transition, a line each.
            pub fn graph() -> String {
                let line = |(from, on, to): &($state, $event, $state)| {
                    format!("{from:?} -- {on:?} -> {to:?}\n")
                };
                Self::TRANSITIONS.iter().map(line).collect()
            }
        }
    };
}
