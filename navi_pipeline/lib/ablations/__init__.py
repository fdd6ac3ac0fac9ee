"""Ablations: one thing is changed, the rest stays; every variant is trained with several seeds and flown unseen."""
