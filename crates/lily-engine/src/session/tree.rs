//! Which prefixes can be resumed: a tree of runs of tokens. A node stands for the tokens from the root to its end, and
//! may hold a snapshot of what the model made of them. Every leaf holds one.

use lily_kernels::backend::BufferId;

/// A place in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeId(usize);

const ROOT: NodeId = NodeId(0);

/// What is needed to go on behind a prefix.
#[derive(Debug)]
pub struct Snapshot {
    /// The recurrent state.
    pub state: BufferId,
    /// KV block of each 256 positions; of the last one, only the positions of the prefix are its own.
    pub blocks: Vec<u32>,
    /// When it was last of use.
    pub last_used: u64,
}

#[derive(Debug)]
struct Node {
    parent: NodeId,
    /// Tokens behind the parent's end.
    run: Vec<u32>,
    /// Tokens from the root to its end.
    len: usize,
    children: Vec<NodeId>,
    snapshot: Option<Snapshot>,
}

/// All prefixes that can be resumed.
#[derive(Debug)]
pub struct PrefixTree {
    /// By id; `None` where a node was removed.
    nodes: Vec<Option<Node>>,
    vacant: Vec<NodeId>,
    snapshots: usize,
}

impl PrefixTree {
    /// Nothing can be resumed.
    pub fn new() -> Self {
        let root = Node { parent: ROOT, run: Vec::new(), len: 0, children: Vec::new(), snapshot: None };
        Self { nodes: vec![Some(root)], vacant: Vec::new(), snapshots: 0 }
    }

    /// Snapshots held.
    pub fn snapshots(&self) -> usize {
        self.snapshots
    }

    /// Tokens of a node's prefix.
    pub fn len(&self, id: NodeId) -> usize {
        self.node(id).len
    }

    /// A node's snapshot.
    pub fn snapshot(&self, id: NodeId) -> Option<&Snapshot> {
        self.node(id).snapshot.as_ref()
    }

    /// All snapshots, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &Snapshot)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(|(i, node)| Some((NodeId(i), node.as_ref()?.snapshot.as_ref()?)))
    }

    /// The node with a snapshot that holds most of `tokens`, at most `limit` of them.
    pub fn longest(&self, tokens: &[u32], limit: usize) -> Option<NodeId> {
        let (mut at, mut best) = (ROOT, None);
        loop {
            let len = self.node(at).len;
            let Some(child) = self.child(at, tokens.get(len).copied()) else { return best };
            let node = self.node(child);
            if node.len > limit || !tokens[len..].starts_with(&node.run) {
                return best;
            }
            if node.snapshot.is_some() {
                best = Some(child);
            }
            at = child;
        }
    }

    /// Keeps a snapshot of what `tokens` lead to; returns the one that it replaces.
    pub fn insert(&mut self, tokens: &[u32], snapshot: Snapshot) -> Option<Snapshot> {
        let id = self.place(tokens);
        let old = self.node_mut(id).snapshot.replace(snapshot);
        self.snapshots += usize::from(old.is_none());
        old
    }

    /// Whether exactly these tokens can be resumed.
    pub fn contains(&self, tokens: &[u32]) -> bool {
        self.longest(tokens, tokens.len()).is_some_and(|id| self.len(id) == tokens.len())
    }

    /// A node and those on the way to it were of use.
    pub fn touch(&mut self, id: NodeId, now: u64) {
        let mut at = id;
        while at != ROOT {
            let node = self.node_mut(at);
            if let Some(snapshot) = &mut node.snapshot {
                snapshot.last_used = now;
            }
            at = node.parent;
        }
    }

    /// Takes a node's snapshot away, and of the tree what only led to it.
    pub fn remove(&mut self, id: NodeId) -> Option<Snapshot> {
        let snapshot = self.node_mut(id).snapshot.take();
        self.snapshots -= usize::from(snapshot.is_some());
        self.prune(id);
        snapshot
    }

    /// The snapshot whose loss costs least: of those that were of no use for the longest time, the one that the fewest
    /// tokens separate from the snapshot before it.
    pub fn cheapest(&self) -> Option<NodeId> {
        self.iter().min_by_key(|(id, snapshot)| (snapshot.last_used, self.gap(*id))).map(|(id, _)| id)
    }

    /// The leaf that was of no use for the longest time: no longer prefix shares the end of its blocks.
    pub fn oldest_leaf(&self) -> Option<NodeId> {
        let leaves = self.iter().filter(|(id, _)| self.node(*id).children.is_empty());
        leaves.min_by_key(|(_, snapshot)| snapshot.last_used).map(|(id, _)| id)
    }

    /// A node's tokens.
    pub fn tokens(&self, id: NodeId) -> Vec<u32> {
        let mut runs = Vec::new();
        let mut at = id;
        while at != ROOT {
            runs.push(&self.node(at).run);
            at = self.node(at).parent;
        }
        runs.into_iter().rev().flatten().copied().collect()
    }

    fn gap(&self, id: NodeId) -> usize {
        let mut at = self.node(id).parent;
        while at != ROOT && self.node(at).snapshot.is_none() {
            at = self.node(at).parent;
        }
        self.len(id) - self.len(at)
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes[id.0].as_ref().expect("ids of removed nodes are not kept")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.0].as_mut().expect("ids of removed nodes are not kept")
    }

    /// The child whose run begins with a token.
    fn child(&self, id: NodeId, token: Option<u32>) -> Option<NodeId> {
        let token = token?;
        self.node(id).children.iter().copied().find(|child| self.node(*child).run[0] == token)
    }

    fn add(&mut self, node: Node) -> NodeId {
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            NodeId(self.nodes.len() - 1)
        });
        self.nodes[id.0] = Some(node);
        id
    }

    /// The node at the end of `tokens`, made if need be.
    fn place(&mut self, tokens: &[u32]) -> NodeId {
        let mut at = ROOT;
        loop {
            let len = self.node(at).len;
            if len == tokens.len() {
                return at;
            }
            let Some(child) = self.child(at, Some(tokens[len])) else {
                let (run, children) = (tokens[len..].to_vec(), Vec::new());
                let leaf = self.add(Node { parent: at, run, len: tokens.len(), children, snapshot: None });
                self.node_mut(at).children.push(leaf);
                return leaf;
            };
            let run = &self.node(child).run;
            let common = run.iter().zip(&tokens[len..]).take_while(|(a, b)| a == b).count();
            at = if common == run.len() { child } else { self.split(child, common) };
        }
    }

    /// Cuts a node's run in two; returns the new node, which ends after `at` tokens of the run.
    fn split(&mut self, id: NodeId, at: usize) -> NodeId {
        let node = self.node_mut(id);
        let (parent, len) = (node.parent, node.len - node.run.len() + at);
        let rest = node.run.split_off(at);
        let run = std::mem::replace(&mut node.run, rest);
        let middle = self.add(Node { parent, run, len, children: vec![id], snapshot: None });
        self.node_mut(id).parent = middle;
        self.replace_child(parent, id, middle);
        middle
    }

    fn replace_child(&mut self, parent: NodeId, old: NodeId, new: NodeId) {
        let children = &mut self.node_mut(parent).children;
        children.iter_mut().filter(|child| **child == old).for_each(|child| *child = new);
    }

    /// Removes a node that leads nowhere, and joins one that leads to a single other with it.
    fn prune(&mut self, id: NodeId) {
        let node = self.node(id);
        if id == ROOT || node.snapshot.is_some() {
            return;
        }
        let parent = node.parent;
        match node.children[..] {
            [] => {
                self.node_mut(parent).children.retain(|child| *child != id);
                self.nodes[id.0] = None;
                self.vacant.push(id);
                self.prune(parent);
            }
            [only] => {
                let mut run = std::mem::take(&mut self.node_mut(id).run);
                let child = self.node_mut(only);
                run.append(&mut child.run);
                child.run = run;
                child.parent = parent;
                self.replace_child(parent, id, only);
                self.nodes[id.0] = None;
                self.vacant.push(id);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn snapshot(last_used: u64) -> Snapshot {
        Snapshot { state: BufferId(0), blocks: Vec::new(), last_used }
    }

    #[test]
    fn the_longest_prefix_with_a_snapshot_is_found_and_never_more_than_the_limit() {
        let mut tree = PrefixTree::new();
        for tokens in [&[1, 2][..], &[1, 2, 3, 4], &[1, 2, 9], &[7]] {
            tree.insert(tokens, snapshot(0));
        }
        let longest = |tokens: &[u32], limit| tree.longest(tokens, limit).map_or(0, |id| tree.len(id));
        assert_eq!(longest(&[1, 2, 3, 4, 5], 9), 4);
        assert_eq!(longest(&[1, 2, 3, 4, 5], 3), 2);
        assert_eq!(longest(&[1, 2, 3], 9), 2, "the middle of a run is no place to resume");
        assert_eq!(longest(&[1, 2, 9, 9], 9), 3);
        assert_eq!((longest(&[7], 9), longest(&[8], 9), longest(&[], 9), longest(&[1], 9)), (1, 0, 0, 0));
    }

    #[test]
    fn the_cheapest_is_old_then_close_to_the_one_before_it() {
        let mut tree = PrefixTree::new();
        tree.insert(&[1; 10], snapshot(5));
        tree.insert(&[1; 12], snapshot(5));
        tree.insert(&[1; 30], snapshot(5));
        tree.insert(&[2; 4], snapshot(9));
        assert_eq!(tree.cheapest().map(|id| tree.len(id)), Some(12), "two tokens behind another");
        assert_eq!(tree.oldest_leaf().map(|id| tree.len(id)), Some(30));
        let middle = tree.longest(&[1; 20], 20).unwrap();
        tree.touch(middle, 20);
        assert_eq!(tree.cheapest().map(|id| tree.len(id)), Some(30));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

        /// Against a plain map from prefixes to marks.
        #[test]
        fn the_tree_is_a_map_from_prefixes(
            steps in vec((vec(0..3u32, 0..12), any::<bool>()), 1..40),
            question in vec(0..3u32, 0..14),
            limit in 0..14usize,
        ) {
            let (mut tree, mut map) = (PrefixTree::new(), BTreeMap::new());
            for (i, (tokens, insert)) in steps.iter().enumerate().filter(|(_, (tokens, _))| !tokens.is_empty()) {
                if *insert {
                    tree.insert(tokens, snapshot(i as u64));
                    map.insert(tokens.clone(), i as u64);
                } else if let Some(id) = tree.longest(tokens, tokens.len()) {
                    let gone = tree.tokens(id);
                    prop_assert!(tokens.starts_with(&gone));
                    prop_assert_eq!(tree.remove(id).map(|s| s.last_used), map.remove(&gone));
                }
                let mut all: Vec<_> = tree.iter().map(|(id, s)| (tree.tokens(id), s.last_used)).collect();
                all.sort();
                prop_assert_eq!(&all, &map.clone().into_iter().collect::<Vec<_>>());
                prop_assert_eq!(tree.snapshots(), map.len());
                let live = tree.nodes.iter().flatten().count();
                prop_assert!(live <= 2 * map.len() + 1, "{} nodes for {} snapshots", live, map.len());
            }
            let best = (0..=limit.min(question.len())).rev().find(|len| map.contains_key(&question[..*len]));
            prop_assert_eq!(tree.longest(&question, limit).map(|id| tree.len(id)), best);
        }
    }
}
