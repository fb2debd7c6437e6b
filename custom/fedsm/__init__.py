"""FedSM (Xu et al., CVPR 2022): a federated super model for medical image segmentation."""

__version__ = "0.2.0"
