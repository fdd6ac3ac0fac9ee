"""Training commands: `navi train`, `navi bc`, `navi learner`, and the flags they share."""
